"""Order heads by the error that is left once the other heads have been refitted: optimal brain surgery."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from headjax.core.errors import DataError, HeadjaxError
from headjax.core.programs import one_blas_thread
from headjax.core.progress import Update
from headjax.heads.discovery import find_sites
from headjax.heads.head_id import HeadId
from headjax.heads.maps import OutputMap
from headjax.heads.ordering import Order
from headjax.heads.program import Loss, examples_in
from headjax.heads.readers import BlockReader, Places, SiteReader, reader_for
from headjax.heads.refit import Change, centred, damped_inverse, without_features
from headjax.heads.site import require_stacks
from headjax.nn.state import Compute

POINTS = 4
"""Numbers of removed heads of a layer at which the effect is measured: a quarter, half, three quarters, all."""

Positions = tuple[int, ...]
"""Positions of the heads of a layer that go together."""


class Removals(NamedTuple):
    """Removal of a layer's heads one after another, or group after group."""

    order: tuple[Positions, ...]
    errors: np.ndarray  # [removals + 1], mean squared error of the layer's output after 0, 1, ... removals


def group_costs(inverse: np.ndarray, output: np.ndarray, groups: Sequence[Positions]) -> np.ndarray:
    """Return the cost of removing each of these groups: tr(W_S^T ((H^-1)_SS)^-1 W_S) (ZipLM, arXiv 2302.04089).

    This cost is the mean squared error of the layer's output once the other heads have been refitted.
    """
    flat = output.reshape(-1, output.shape[2])

    def cost(rows: np.ndarray) -> float:
        return float((flat[rows] * np.linalg.solve(inverse[np.ix_(rows, rows)], flat[rows])).sum())

    return np.array([cost(_rows(group, output.shape[1])) for group in groups])


def _rows(group: Positions, size: int) -> np.ndarray:
    """Return the features of the contexts that belong to these heads."""
    rows: np.ndarray = (np.asarray(group)[:, None] * size + np.arange(size)[None, :]).ravel()
    return rows


def layer_removals(moments: np.ndarray, output: np.ndarray, groups: Sequence[Positions] | None = None) -> Removals:
    """Return the greedy removal of all heads of a layer, each time the group of least cost per head."""
    inverse = damped_inverse(moments)
    left = [(head,) for head in range(len(output))] if groups is None else list(groups)
    order, errors = [], [0.0]
    while left:
        costs = group_costs(inverse, output, left)
        best = int(np.argmin(costs / np.array(list(map(len, left)))))
        order.append(left.pop(best))
        errors.append(errors[-1] + max(float(costs[best]), 0.0))
        rows, flat = _rows(order[-1], output.shape[1]), output.reshape(-1, output.shape[2])
        inverse, flat = without_features(inverse, flat, rows)
        output = flat.reshape(output.shape)
    return Removals(tuple(order), np.asarray(errors))


def reconstruction_order(
    model: nnx.Module,
    batches: Iterable[Any],
    *,
    stacks: Iterable[str] | None = None,
    whole_groups: bool = False,
    loss: Loss | None = None,
    compute: Compute = Compute(),
    strict: bool = False,
    progress: Update | None = None,
) -> Order:
    """Return heads in the order in which their removal costs least once the kept heads have been refitted.

    Within a layer the order is greedy by `group_costs`, of heads or of whole groups. Layers are compared by an effect
    with a quarter, half, three quarters and all heads of one layer removed and the others refitted, on a few examples
    that they are not refitted on. Where the model offers the walk and its blocks show their sub-layers, as headjax's
    models do, that is the change of the model's own output (`headjax.heads.agreement`), to second order in the stream
    behind the layer (`headjax.heads.sensitivity`), and no labels are read. With a loss, and for any other model, it is
    the measured rise of the loss. Other numbers of heads are placed between these by their error. Each step takes the
    layer in which the next removals raise the effect least per head.

    On the walk the cost is a forward pass over all examples, and about seven over those that compare layers, whatever
    the number of layers.

    Under a mesh set with `jax.set_mesh` the examples of a walk's batches are spread over its batch axes.

        >>> model = headjax.demo_model()
        >>> batches = list(headjax.load_task("LICENSE", model, length=64).batches(4))
        >>> order = headjax.reconstruction_order(model, batches)
        >>> len(order)
        32

    Args:
        model: Model to order the heads of.
        batches: Examples. Layers are compared on about 40 % of them, at most 128, or on about 256 for a loss, in
            batches spread evenly over all.
        stacks: Head stacks to order; None is all.
        whole_groups: Whether all query heads of a KV head go together.
        loss, strict: As for `score_heads`. None takes the walk where the model offers it, else the model's own loss.
        compute: Precision and kernels, without a loss of yours.
        progress: Called after every batch, and after the layers have been compared.

    Raises:
        HeadjaxError: Second moments or an effect are not finite, or the model has no such head stack.
        DataError: There are no batches.
        ConfigError: A batch does not divide over the mesh.
    """
    batches = list(batches)
    if not batches:
        raise DataError("batches: there is no example to order heads by")
    reader, options = reader_for(model, loss), dict[str, Any](compute=compute)
    if not reader.by_blocks:
        options |= {"loss": loss, "strict": strict}
    order: Order = reader.on_mesh(_ordered)(reader, model, batches, stacks, whole_groups, progress, options)
    return order


def _ordered(
    kind: type[Any],
    model: nnx.Module,
    batches: Sequence[Any],
    stacks: Iterable[str] | None,
    whole_groups: bool,
    progress: Update | None,
    options: Mapping[str, Any],
) -> Order:
    chosen, done = require_stacks(find_sites(model), stacks), [0, 0]
    reader: BlockReader | SiteReader = kind(model, batches, **options)

    def tell(part: int, count: int) -> None:
        done[part] = count
        if progress is not None:
            progress(min(sum(done), len(batches)), {})

    parts = held_back(reader.batches, reader.compared)
    eval_sums, fit_sums = (reader.moments(part, functools.partial(tell, number)) for number, part in enumerate(parts))
    layers = []
    for (each, evaluated), (_, fitted) in zip(eval_sums, fit_sums, strict=True):
        if each.heads and each.places[0][0] in chosen:
            with one_blas_thread():
                layers.append(_Layer.of(each, evaluated, fitted, whole_groups))
    curves = list[np.ndarray]()
    effects = reader.effects({layer.places: layer.change for layer in layers}, parts[0])
    for layer, effect in zip(layers, effects, strict=True):
        curves.append(layer.curve(effect))
        if progress is not None:
            progress(len(batches), {"layers": float(len(curves))})
    return _merged(layers, curves)


class _Layer(NamedTuple):
    """The removal of a layer's heads, and the changes of its map after the measured numbers of removals."""

    places: Places
    heads: tuple[HeadId, ...]
    removals: Removals
    change: Change

    @classmethod
    def of(cls, each: OutputMap, evaluated: np.ndarray, fitted: np.ndarray, whole_groups: bool) -> _Layer:
        """Remove heads, or whole groups, by all examples, and solve the changes on some of them."""
        if not (np.isfinite(evaluated).all() and np.isfinite(fitted).all()):
            raise HeadjaxError(f"reconstruction: {each.title}: second moments of contexts are not finite")
        weight, groups = each.weight(), dict[int, Positions]()
        for position, group in enumerate(each.groups if whole_groups else range(len(each.heads))):
            groups[group] = (*groups.get(group, ()), position)
        output = weight.reshape(len(each.heads), -1, weight.shape[1])
        found = layer_removals(centred(fitted + evaluated, each.biased)[0], output, list(groups.values()))
        return cls(each.places, each.heads, found, _changes(found.order, output, *centred(fitted, each.biased)))

    def curve(self, effects: np.ndarray) -> np.ndarray:
        """Return the effect of 0, 1, ... removals, set between the measured ones by error."""
        counts, errors = [0, *_measured(len(self.removals.order))], self.removals.errors
        curve: np.ndarray = np.interp(errors, errors[counts], np.maximum.accumulate([0.0, *effects]))
        return curve


def batches_for(batches: Sequence[Any], examples: int) -> list[Any]:
    """Return batches with about `examples` examples, spread over all, since they are sorted by length."""
    size = max(sum(map(examples_in, batches)) / max(len(batches), 1), 1.0)
    count = min(max(round(examples / size), 1), len(batches))
    return [batches[int((place + 0.5) * len(batches) / count)] for place in range(count)]


def held_back(batches: Sequence[Any], examples: int) -> tuple[list[Any], list[Any]]:
    """Return the batches to evaluate changes on, about half of all examples at most, and those to fit them on."""
    if len(batches) < 2:
        return list(batches), list(batches)
    eval_batches = batches_for(batches, min(examples, sum(map(examples_in, batches)) // 2))
    return eval_batches, [batch for batch in batches if all(batch is not other for other in eval_batches)]


def _measured(removals: int) -> list[int]:
    """Return the numbers of removals at which the effect is measured."""
    return sorted({max(round(removals * point / POINTS), 1) for point in range(1, POINTS + 1)})


def _changes(order: Sequence[Positions], output: np.ndarray, moments: np.ndarray, mean: np.ndarray) -> Change:
    """Return the changes of a map after the measured numbers of removals, `[numbers, n, width]`."""
    flat, changes = output.reshape(-1, output.shape[2]), []
    inverse = damped_inverse(moments)
    for count in _measured(len(order)):
        gone = tuple(head for group in order[:count] for head in group)
        changes.append(without_features(inverse, flat, _rows(gone, output.shape[1]))[1] - flat)
    weights = np.stack(changes)
    return Change(weights.astype(np.float32), -mean @ weights)


def _merged(layers: Sequence[_Layer], curves: Sequence[np.ndarray]) -> Order:
    """Return the heads of all layers, next always that of the layer whose effect rises least per head."""
    done, order = [0] * len(layers), list[HeadId]()
    gone = [np.cumsum([0, *map(len, layer.removals.order)]) for layer in layers]

    def slope(i: int) -> float:
        ahead = curves[i][done[i] + 1 :] - curves[i][done[i]]
        heads = gone[i][done[i] + 1 :] - gone[i][done[i]]
        return float((ahead / heads).min()) if len(ahead) else float("inf")

    for _ in range(sum(len(layer.removals.order) for layer in layers)):
        i = min(range(len(layers)), key=slope)
        heads = [layers[i].heads[position].head for position in layers[i].removals.order[done[i]]]
        done[i] += 1
        order.extend(HeadId(*place, head) for place in layers[i].places for head in heads)
    return tuple(order)
