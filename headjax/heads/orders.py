"""Orders of removal by the names that the command line and the report use."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from headjax.core.errors import DataError, HeadjaxError, require
from headjax.core.fields import Checked, Count, NotNegative, Positive, Size, unknown_name
from headjax.core.programs import one_blas_thread
from headjax.core.progress import Update
from headjax.heads.ablation import Mode, ablate
from headjax.heads.batches import held_back
from headjax.heads.discovery import find_sites
from headjax.heads.head_id import HeadId
from headjax.heads.learned_gates import GateDistribution, HardConcrete, Subset, learn_gates
from headjax.heads.ordering import (
    Order,
    by_groups,
    by_score,
    flat,
    key_value_groups,
    random_order,
    removals,
)
from headjax.heads.output_maps import BlockReader, OutputMap, Places, SiteReader
from headjax.heads.program import Applied, Loss, shown_in, sites_of
from headjax.heads.refit import (
    Change,
    Positions,
    Removals,
    centred,
    damped_inverse,
    layer_removals,
    rows_of,
    without_features,
)
from headjax.heads.scoring import GRADIENT_SCORES, SCORES, score_heads
from headjax.heads.site import find_heads, require_stacks
from headjax.mesh.mesh import on_automatic_axes
from headjax.models.walk import shows_sub_layers
from headjax.nn.block import Compute

OTHER_ORDERS: Mapping[str, str] = {
    "ablation": "cost of removing each head alone: the oracle of Michel et al. 2019, section 4",
    "reconstruction": "error left once the kept heads are refitted, by its effect on the output: no labels; ZipLM",
    "hard_concrete": "learned gates under an L0 penalty: Voita et al. 2019",
    "subset": "learned gates that keep exactly the number asked for: Li et al. 2021",
    "random": "no order at all",
}
"""Orders other than the scores of `SCORES`, with their descriptions."""

ORDERS: Mapping[str, str] = {**SCORES, **OTHER_ORDERS}
"""All orders by name, with their descriptions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrderConfig(Checked):
    """Order of removal.

        >>> model = headjax.demo_model()
        >>> batches = [headjax.text_batch(model.tokenizer, ["for name in names:", "while not found:"])]
        >>> len(headjax.order_heads(model, batches, headjax.OrderConfig(by="random", seed=1)))
        32

    Attributes:
        by: Name in `ORDERS`.
        seed: Seed of random orders and of the samples of learned gates.
        gate_steps: Number of training steps of learned gates.
        gate_rate: Learning rate of learned gates.
        gate_weight: Nats that an open gate costs under `hard_concrete`.
        stacks: Head stacks to remove heads from; empty is all.
        whole_groups: Whether all query heads of a KV head go together, by the sum of their scores, or by
            the cost of removing them together (`ablation`, `reconstruction`).
    """

    by: str = "importance_layer"
    seed: Count = 0
    gate_steps: Size = 200
    gate_rate: Positive = 0.05
    gate_weight: NotNegative = 0.01
    stacks: tuple[str, ...] = ()
    whole_groups: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.by in ORDERS, "by", unknown_name("order", self.by, ORDERS))


def order_heads(
    model: nnx.Module | Applied,
    batches: Iterable[Any],
    by: str | OrderConfig = "importance_layer",
    *,
    count: int = 0,
    loss: Loss | None = None,
    strict: bool = False,
    progress: Update | None = None,
) -> Order:
    """Return all heads in the order of their removal, the most dispensable first.

    A head of layers that share their parameters follows itself, layer after layer.

        >>> model = headjax.demo_model()
        >>> batches = [headjax.text_batch(model.tokenizer, ["for name in names:", "while not found:"])]
        >>> order = headjax.order_heads(model, batches, "importance_layer")
        >>> len(order), str(order[0])
        (32, 'decoder/1/6')

    Args:
        model, batches, loss, strict: As for `score_heads`; of the order `reconstruction` as for `reconstruction_order`.
        by: Name of an order (`headjax.heads.orders.ORDERS`): a score, `ablation`, `hard_concrete`, `subset`, ...
            Or an `OrderConfig`, which also says the head stacks, and whether KV groups go whole.
        count: Number of heads to remove, for the orders that choose them together (`subset`).
        progress: Called with the number of batches or steps done.

    Raises:
        DataError: There are no batches.
        HeadjaxError: There is no such order, the model has none by this name, or as for `score_heads`.
    """
    config, sites = OrderConfig(by=by) if isinstance(by, str) else by, sites_of(model)
    stacks = require_stacks(sites, config.stacks)
    heads = tuple(head for head in find_heads(sites) if head.stack in stacks)
    options: dict[str, Any] = {"loss": loss, "strict": strict, "progress": progress}
    ranked = functools.partial(by_groups, sites) if config.whole_groups else by_score
    if config.by == "random":
        order = random_order(heads, config.seed)
    elif config.by == "ablation":
        groups = key_value_groups(sites, set(heads)) if config.whole_groups else [(head,) for head in heads]
        of_first = {group[0]: group for group in groups}
        mode: Mode = "group" if config.whole_groups else "each"
        effects = ablate(model, batches, mode, heads=of_first, **options).effects()
        order = flat(of_first[head] for head in by_score(effects))
    elif config.by == "reconstruction":
        if not isinstance(model, nnx.Module):
            raise HeadjaxError("by: reconstruction: needs an nnx.Module, in a copy of which W_O is refitted")
        chosen: dict[str, Any] = {"stacks": stacks, "whole_groups": config.whole_groups}
        order = reconstruction_order(model, batches, **chosen, **options)
    elif config.by in LEARNED:
        distribution = LEARNED[config.by](config, max(len(heads) - count, 1))
        settings: dict[str, Any] = {"steps": config.gate_steps, "learning_rate": config.gate_rate, "seed": config.seed}
        order = ranked(learn_gates(model, batches, distribution, stacks=stacks, **settings, **options).logits)
    else:
        available = SCORES if len(shown_in(model, sites)) == len(sites) else GRADIENT_SCORES
        _require_score(config.by, available)
        scores = score_heads(model, batches, **options)
        _require_score(config.by, scores.values)
        order = ranked({head: value for head, value in scores.score(config.by).items() if head.stack in stacks})
    return flat(removals(sites, order, whole_groups=config.whole_groups))


def _require_score(by: str, available: Collection[str]) -> None:
    if by not in available:
        scores = [name for name in SCORES if name in available]
        raise HeadjaxError(f"by: {by}: not of such a model, which has {', '.join([*scores, *OTHER_ORDERS])}")


def units(config: OrderConfig, batches: int) -> tuple[int, str]:
    """Return the last count of `order_heads`'s progress on this many batches, and the unit."""
    passes = 2 if config.by == "reconstruction" else 1  # moments, and effects on the output
    return (config.gate_steps, "step") if config.by in LEARNED else (passes * max(batches, 1), "batch")


LEARNED: Mapping[str, Callable[[OrderConfig, int], GateDistribution]] = {
    "hard_concrete": lambda config, kept: HardConcrete(weight=config.gate_weight),
    "subset": lambda config, kept: Subset(count=kept),
}
"""Orders that choose all heads together: distributions of gates, made from the options and the number to keep."""

POINTS = 4
"""Numbers of removed heads of a layer at which the effect is measured: a quarter, half, three quarters, all."""


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

    Within a layer the order is greedy, of heads or of whole groups (`headjax.heads.refit.layer_removals`). Layers are
    compared by the effect of removing a quarter, half, three quarters and all heads of one layer, on a few examples
    that the others are not refitted on. Other numbers of heads are placed between these by their error. Each step takes
    the layer in which the next removals raise the effect least per head.

    Where the model offers the walk and its blocks show their sub-layers, as headjax's models do, the effect is the
    change of the model's own output, to second order (`headjax.heads.agreement`), and no labels are read. That costs
    a forward pass over all examples, and about seven over those that compare layers. With a loss, and for any other
    model, it is the measured rise of the loss. Under a mesh set with `jax.set_mesh` the examples of a walk's batches
    are spread over its batch axes.

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
        progress: Called with the number of batches done, of twice as many: by moments, then by effects on the output.

    Raises:
        HeadjaxError: Second moments or an effect are not finite, or the model has no such head stack.
        DataError: There are no batches.
        ConfigError: A batch does not divide over the mesh.
    """
    batches = list(batches)
    if not batches:
        raise DataError("batches: there is no example to order heads by")
    if loss is None and shows_sub_layers(model):
        return on_automatic_axes(_ordered)(BlockReader, model, batches, stacks, whole_groups, progress, compute=compute)
    options: dict[str, Any] = {"compute": compute, "loss": loss, "strict": strict}
    return _ordered(SiteReader, model, batches, stacks, whole_groups, progress, **options)


def _ordered(
    kind: type[BlockReader] | type[SiteReader],
    model: Any,
    batches: Sequence[Any],
    stacks: Iterable[str] | None,
    whole_groups: bool,
    progress: Update | None,
    **options: Any,
) -> Order:
    chosen, done = require_stacks(find_sites(model), stacks), [0, 0, 0]
    reader = kind(model, batches, **options)

    def tell(part: int, count: int) -> None:
        done[part] = count
        if progress is not None:
            progress(min(sum(done[:2]), len(batches)) + done[2], {})

    parts = held_back(reader.batches, reader.compared)
    eval_sums, fit_sums = (reader.moments(part, functools.partial(tell, number)) for number, part in enumerate(parts))
    layers = []
    for (each, evaluated), (_, fitted) in zip(eval_sums, fit_sums, strict=True):
        if each.heads and each.places[0][0] in chosen:
            with one_blas_thread():
                layers.append(_Layer.of(each, evaluated, fitted, whole_groups))

    changes = {layer.places: layer.change for layer in layers}
    effects = reader.effects(changes, parts[0], lambda share: tell(2, round(share * len(batches))))
    return _merged(layers, [layer.curve(effect) for layer, effect in zip(layers, effects, strict=True)])


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
        removals = layer_removals(centred(fitted + evaluated, each.biased)[0], output, list(groups.values()))
        (moments, mean), flat_weight, changes = centred(fitted, each.biased), output.reshape(weight.shape), []
        inverse = damped_inverse(moments)
        for count in _measured_counts(len(removals.order)):
            rows = rows_of(tuple(itertools.chain(*removals.order[:count])), output.shape[1])
            changes.append(without_features(inverse, flat_weight, rows)[1] - flat_weight)
        weights = np.stack(changes)  # [numbers, n, width]
        return cls(each.places, each.heads, removals, Change(weights.astype(np.float32), -mean @ weights))

    def curve(self, effects: np.ndarray) -> np.ndarray:
        """Return the effect of 0, 1, ... removals, set between the measured ones by error."""
        counts, errors = [0, *_measured_counts(len(self.removals.order))], self.removals.errors
        curve: np.ndarray = np.interp(errors, errors[counts], np.maximum.accumulate([0.0, *effects]))
        return curve


def _measured_counts(removals: int) -> list[int]:
    return sorted({max(round(removals * point / POINTS), 1) for point in range(1, POINTS + 1)})


def _merged(layers: Sequence[_Layer], curves: Sequence[np.ndarray]) -> Order:
    """Return the heads of all layers; each step takes them from the layer whose effect rises least per head."""
    steps, order = [0] * len(layers), list[HeadId]()
    removed = [np.cumsum([0, *map(len, layer.removals.order)]) for layer in layers]

    def slope(i: int) -> float:
        ahead = curves[i][steps[i] + 1 :] - curves[i][steps[i]]
        heads = removed[i][steps[i] + 1 :] - removed[i][steps[i]]
        return float((ahead / heads).min()) if len(ahead) else float("inf")

    for _ in range(sum(len(layer.removals.order) for layer in layers)):
        i = min(range(len(layers)), key=slope)
        heads = [layers[i].heads[position].head for position in layers[i].removals.order[steps[i]]]
        steps[i] += 1
        order.extend(HeadId(*place, head) for place in layers[i].places for head in heads)
    return tuple(order)
