"""Order heads by the error that is left once the other heads have been refitted: optimal brain surgery."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from headjax.core.errors import DataError, HeadjaxError
from headjax.core.programs import one_blas_thread
from headjax.core.progress import Update
from headjax.core.tensors import Params
from headjax.heads.discovery import find_sites
from headjax.heads.head_id import HeadId
from headjax.heads.layer_sums import replicated_sums, spread
from headjax.heads.maps import add_to, bias_of, every_context, matrix_of
from headjax.heads.missed import checked
from headjax.heads.ordering import Order
from headjax.heads.program import Loss, examples_in, mean_loss, prepare
from headjax.heads.refit import Change, centred, damped_inverse, without_features
from headjax.heads.sensitivity import prices
from headjax.heads.site import AttentionSite, Sites, ones, require_stacks
from headjax.heads.statistics import sum_over
from headjax.mesh.distributed import fetch
from headjax.mesh.explicit import on_automatic_axes, spread_by_compiler
from headjax.mesh.mesh import by_example
from headjax.models.config import HEAD_STACKS, ModelConfig
from headjax.models.inputs import counted_at
from headjax.models.model import Model
from headjax.models.walk import shows_sub_layers
from headjax.nn.compute import Compute
from headjax.nn.layer import Probe
from headjax.nn.passes import Pass

POINTS = 4
"""Numbers of removed heads of a layer at which the effect is measured: a quarter, half, three quarters, all."""

LABELLED = 256
"""Number of examples on which a rise of the loss is measured, which differs more from example to example."""

MEASURED, MEASURED_SHARE = 128, 0.4
"""Greatest number of examples on which a change of the output is measured, and their greatest share of all."""

Tell = Callable[[int, Any], None]
"""Called with the number of every batch and its sums."""

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
    batches: Sequence[Any],
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
        batches: Examples. Layers are compared on about 40 % of them, at most `MEASURED`, or on about `LABELLED` for a
            loss, in batches spread evenly over all.
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
    if not batches:
        raise DataError("batches: there is no example to order heads by")
    if loss is None and shows_sub_layers(model):
        return on_automatic_axes(_ordered)(_ByWalk, model, batches, compute, stacks, whole_groups, progress)
    own = None if compute == Compute() else compute
    ways = functools.partial(_ByLoss, loss=loss, strict=strict)
    return _ordered(ways, model, batches, own, stacks, whole_groups, progress)


def _ordered(
    ways: Callable[..., Any],
    model: nnx.Module,
    batches: Sequence[Any],
    compute: Compute | None,
    stacks: Iterable[str] | None,
    whole_groups: bool,
    progress: Update | None,
) -> Order:
    layers = list(_layers(find_sites(model), stacks))
    way = ways(model, batches, compute)
    judged = way.moments(way.judged, functools.partial(_tell, progress, 0))
    solved = way.moments(way.solved, functools.partial(_tell, progress, len(batches) - len(way.solved)))
    removals: list[Removals] = []
    changes: list[Change] = []
    with one_blas_thread():
        for layer in layers:
            sums = layer.summed(solved)
            output = np.asarray(fetch(matrix_of(model, layer.site, layer.number)), np.float64)
            output = output.reshape(layer.site.heads, layer.site.head_dim, -1)
            biased = bias_of(model, layer.site) is not None
            moments = centred(sums + layer.summed(judged), biased)[0]
            removals.append(layer_removals(moments, output, layer.groups(whole_groups)))
            changes.append(_changes(removals[-1].order, output, *centred(sums, biased)))
    effects = way.effects(layers, changes, progress)
    return _merged(layers, removals, list(map(_curve, removals, effects)))


class _Layer(NamedTuple):
    """An attention layer, or layers that share their parameters."""

    site: AttentionSite
    number: int  # along the site's axis

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Head stack and number of the layer, or of all that share its parameters."""
        return self.site.places if self.site.tied else self.site.places[self.number :][:1]

    @property
    def ids(self) -> list[int]:
        """Number of the head at every position."""
        start = self.number * self.site.heads
        return [head.head for head in self.site.head_ids()[start : start + self.site.heads]]

    def groups(self, whole: bool) -> list[Positions]:
        """Positions of the heads that go together: every head alone, or all that read one KV head."""
        found: dict[int, Positions] = {}
        for place, group in enumerate(self.site.groups.tolist() if whole else range(self.site.heads)):
            found[group] = (*found.get(group, ()), place)
        return list(found.values())

    def summed(self, moments: Mapping[tuple[str, int], np.ndarray]) -> np.ndarray:
        """Sums over the tokens of x x^T, with x the contexts and a 1, of all places together."""
        sums: np.ndarray = np.sum([moments[place] for place in self.places], axis=0)
        if not np.isfinite(sums).all():
            where = str(HeadId(*self.places[0], 0)).rpartition("/")[0]
            raise HeadjaxError(f"reconstruction: {where}: second moments of contexts are not finite")
        return sums


def _layers(sites: Sites, stacks: Iterable[str] | None) -> Iterator[_Layer]:
    """Yield the layers of these head stacks."""
    chosen = require_stacks(sites, stacks)
    for site in sites:
        for number, (stack, _) in enumerate(site.places[:1] if site.tied else site.places):
            if stack in chosen:
                yield _Layer(site, number)


def batches_for(batches: Sequence[Any], examples: int) -> list[Any]:
    """Return batches with about `examples` examples, spread over all, since they are sorted by length."""
    size = max(sum(map(examples_in, batches)) / max(len(batches), 1), 1.0)
    count = min(max(round(examples / size), 1), len(batches))
    return [batches[int((place + 0.5) * len(batches) / count)] for place in range(count)]


def held_back(batches: Sequence[Any], examples: int) -> tuple[list[Any], list[Any]]:
    """Return the batches to judge changes on, about half of all examples at most, and those to solve them on."""
    if len(batches) < 2:
        return list(batches), list(batches)
    judged = batches_for(batches, min(examples, sum(map(examples_in, batches)) // 2))
    return judged, [batch for batch in batches if all(batch is not other for other in judged)]


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


def _curve(found: Removals, effects: Sequence[float]) -> np.ndarray:
    """Return the effect of 0, 1, ... removals, set between the measured ones by error."""
    counts = [0, *_measured(len(found.order))]
    curve: np.ndarray = np.interp(found.errors, found.errors[counts], np.maximum.accumulate([0.0, *effects]))
    return curve


def _merged(layers: Sequence[_Layer], removals: Sequence[Removals], effects: Sequence[np.ndarray]) -> Order:
    """Return the heads of all layers, next always that of the layer whose effect rises least per head."""
    done = [0] * len(layers)
    order: list[HeadId] = []
    gone = [np.cumsum([0, *map(len, found.order)]) for found in removals]

    def slope(i: int) -> float:
        ahead = effects[i][done[i] + 1 :] - effects[i][done[i]]
        heads = gone[i][done[i] + 1 :] - gone[i][done[i]]
        return float((ahead / heads).min()) if len(ahead) else float("inf")

    for _ in range(sum(len(found.order) for found in removals)):
        i = min(range(len(layers)), key=slope)
        heads = [layers[i].ids[place] for place in removals[i].order[done[i]]]
        done[i] += 1
        order.extend(HeadId(*place, head) for place in layers[i].places for head in heads)
    return tuple(order)


class _ByWalk:
    """Contexts and effects of a model whose blocks show their sub-layers: the change of its output, without labels."""

    def __init__(self, model: Model, batches: Sequence[Any], compute: Compute) -> None:
        self._model, placed = spread(model, batches)
        examples = min(MEASURED, round(MEASURED_SHARE * sum(map(examples_in, placed))))
        self.judged, self.solved = held_back(placed, examples)
        self._compute = compute

    def moments(self, batches: Sequence[Any], tell: Tell) -> dict[tuple[str, int], np.ndarray]:
        """Return sums of x x^T of every layer's contexts and a 1, over the tokens."""
        step = functools.partial(_moments, self._model.config, self._model.params, self._compute)
        found = sum_over(map(step, batches), tell)
        return {(stack, layer): sums for stack, own in found.items() for layer, sums in enumerate(own)}

    def effects(self, layers: Sequence[_Layer], changes: Sequence[Change], progress: Update | None) -> list[np.ndarray]:
        """Return the change of the output for each change of each layer's map."""
        places = [[(HEAD_STACKS[stack], number) for stack, number in layer.places] for layer in layers]
        keys = [tuple((stack, number, slot) for (stack, slot), number in own) for own in places]
        found = prices(self._model, self.judged, dict(zip(keys, changes, strict=True)), self._compute)
        if progress is not None:
            progress(len(self.judged + self.solved), {"layers": float(len(layers))})
        return [found[key] for key in keys]


class _ByLoss:
    """Contexts and effects of any model by whole passes: the rise of the loss."""

    def __init__(
        self, model: nnx.Module, batches: Sequence[Any], compute: Compute | None, loss: Loss | None, strict: bool
    ) -> None:
        self._model = model
        self._program, self._state = prepare(model, loss, compute)
        self._gates = ones(self._program.sites)
        self.judged, self.solved = held_back(list(checked(self._program, self._state, batches, strict)), LABELLED)

    def moments(self, batches: Sequence[Any], tell: Tell) -> dict[tuple[str, int], np.ndarray]:
        """Return sums of x x^T of every layer's contexts and a 1, over the positions that can change the loss."""
        sites = sorted(self._program.sites, key=lambda site: site.path)
        products = functools.partial(_products, layers=tuple(len(site.places) for site in sites))
        contexts = (every_context(self._program, self._state, batch) for batch in batches)
        each = (spread_by_compiler(products, PartitionSpec(), own) for own in contexts)
        found = sum_over(each, tell)
        return {place: found[site.path][number] for site in sites for number, place in enumerate(site.places)}

    def effects(self, layers: Sequence[_Layer], changes: Sequence[Change], progress: Update | None) -> list[np.ndarray]:
        """Return the rise of the loss for each change of each layer's map."""
        whole = mean_loss(self._program, self._state, self._gates, self.judged)
        found: list[np.ndarray] = []
        for layer, change in zip(layers, changes, strict=True):
            losses = [self._loss(layer, Change(*one)) for one in zip(*change, strict=True)]
            found.append(np.array(losses) - whole)
            if progress is not None:
                progress(len(self.judged + self.solved), {"layers": float(len(found))})
        return found

    def _loss(self, layer: _Layer, change: Change) -> float:
        """Return the loss with another map in a layer."""
        copy = nnx.clone(self._model, graph=True)
        add_to(copy, layer.site, layer.number, change)
        return mean_loss(self._program, nnx.split(copy, graph=True)[1], self._gates, self.judged)


def _tell(progress: Update | None, before: int, number: int, fetched: Any) -> None:
    if progress is not None:
        progress(before + number + 1, {})


@functools.partial(jax.jit, static_argnames="layers")
def _products(contexts: dict[str, jax.Array], layers: tuple[int, ...]) -> dict[str, jax.Array]:
    """Return by site, in the order of paths, the sums of x x^T, `[layers, n, n]`, with x the contexts and a 1."""
    found = {}
    for count, (path, own) in zip(layers, sorted(contexts.items()), strict=True):
        x = (own * own[..., -1:]).reshape(count, -1, own.shape[-1])
        found[path] = jnp.einsum("ltn,ltm->lnm", x, x, precision="highest")
    return found


@functools.partial(jax.jit, static_argnames=("config", "compute"))
def _moments(config: ModelConfig, params: Params, compute: Compute, batch: Any) -> dict[str, list[jax.Array]]:
    def second(probe: Probe) -> jax.Array:
        context = probe.attended.context
        flat = context.reshape(*context.shape[:2], context.shape[2] * context.shape[3]).astype(jnp.float32)
        counted = counted_at(probe.query_mask, context.shape[:2])[:, :, None]
        x = by_example(jnp.where(counted > 0, jnp.concatenate([flat, jnp.ones((*flat.shape[:2], 1))], axis=2), 0.0))
        tokens = x.reshape(-1, x.shape[2])
        return replicated_sums(jnp.matmul(tokens.T, tokens, precision="highest"))

    return Model(config, params).forward(batch, Pass(probe=second, compute=compute)).require_probes()
