"""Order heads by the error that is left once the other heads have been refitted: optimal brain surgery."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.core.modules import copied
from headjax.core.progress import Update
from headjax.core.tensors import Params
from headjax.heads.damage import Damage
from headjax.heads.effect import OutputChange
from headjax.heads.head_id import HeadId, require_stack
from headjax.heads.layer_sums import replicated_sums, spread
from headjax.heads.ordering import Order
from headjax.heads.refit import damped_inverse, without_features
from headjax.heads.statistics import sum_over
from headjax.heads.surgery import LayerModule, attention_layers, output_map
from headjax.mesh.distributed import fetch
from headjax.mesh.explicit import on_automatic_axes
from headjax.mesh.mesh import by_example
from headjax.models.compute import Compute
from headjax.models.config import Batch, ModelConfig, Options
from headjax.models.inputs import counted_at
from headjax.models.layer import Probe
from headjax.models.model import Model

POINTS = 4
"""Numbers of removed heads of a layer at which the effect is measured: a quarter, half, three quarters, all."""


Positions = tuple[int, ...]
"""Positions of the heads of a layer that go together."""


class Removals(NamedTuple):
    """Removal of a layer's heads one after another, or group after group.

    Attributes:
        order: Positions of the heads that go together, by removal.
        errors: `[removals + 1]`, mean squared error of the layer's output after 0, 1, ... removals.
        outputs: `[removals + 1, heads, value_dim, width]`, W_O after these removals, refitted.
    """

    order: tuple[Positions, ...]
    errors: np.ndarray
    outputs: list[np.ndarray]


def group_costs(inverse: np.ndarray, output: np.ndarray, groups: Sequence[Positions]) -> np.ndarray:
    """Return the cost of removing each of these groups: tr(W_S^T ((H^-1)_SS)^-1 W_S) (ZipLM, arXiv 2302.04089).

    This cost is the mean squared error of the layer's output once the other heads have been refitted.
    """
    flat = output.reshape(-1, output.shape[2])

    def cost(rows: np.ndarray) -> float:
        return float((flat[rows] * np.linalg.solve(inverse[np.ix_(rows, rows)], flat[rows])).sum())

    return np.array([cost(_rows(group, output.shape[1])) for group in groups])


def remove_group(inverse: np.ndarray, output: np.ndarray, group: Positions) -> tuple[np.ndarray, np.ndarray]:
    """Return H^-1 and W_O after the removal of heads together, the other heads refitted, see `without_features`."""
    rows = _rows(group, output.shape[1])
    inverse, flat = without_features(inverse, output.reshape(-1, output.shape[2]), rows)
    return inverse, flat.reshape(output.shape)


def _rows(group: Positions, size: int) -> np.ndarray:
    """Return the features of the contexts that belong to these heads."""
    rows: np.ndarray = (np.asarray(group)[:, None] * size + np.arange(size)[None, :]).ravel()
    return rows


def layer_removals(moments: np.ndarray, output: np.ndarray, groups: Sequence[Positions] | None = None) -> Removals:
    """Return the greedy removal of all heads of a layer, each time the group of least cost per head."""
    inverse = damped_inverse(moments)
    left = [(head,) for head in range(len(output))] if groups is None else list(groups)
    order, errors, outputs = [], [0.0], [output]
    while left:
        costs = group_costs(inverse, outputs[-1], left)
        best = int(np.argmin(costs / np.array(list(map(len, left)))))
        group = left.pop(best)
        inverse, solved = remove_group(inverse, outputs[-1], group)
        order.append(group)
        errors.append(errors[-1] + max(float(costs[best]), 0.0))
        outputs.append(solved)
    return Removals(tuple(order), np.asarray(errors), outputs)


@on_automatic_axes
def reconstruction_order(
    model: Model,
    batches: Sequence[Batch],
    *,
    stacks: Iterable[str] | None = None,
    whole_groups: bool = False,
    compute: Compute = Compute(),
    progress: Update | None = None,
) -> Order:
    """Return heads in the order in which their removal costs least once the kept heads have been refitted.

    Within a layer the order is greedy by `group_costs`, of heads or of whole groups. Layers are compared by the effect
    on the model's own output (`headjax.heads.agreement`). The change of the output is measured on a few examples, with
    a quarter, half, three quarters and all heads of one layer removed and the others refitted. Other numbers of heads
    are placed between them by their error. Each step takes the layer in which the next removals raise that change least
    per head. No labels are read.

    Under a mesh set with `jax.set_mesh` the examples of every batch are spread over its batch axes.

        >>> model = headjax.demo_model()
        >>> batches = list(headjax.load_task("LICENSE", model, length=64).batches(4))
        >>> order = headjax.reconstruction_order(model, batches)
        >>> len(order)
        32

    Args:
        model: Model to order the heads of.
        batches: Examples: arrays by Hugging Face's names. Layers are compared on about `headjax.heads.effect.MEASURED`
            of them, in batches spread evenly over all.
        stacks: Head stacks to order; None is all.
        whole_groups: Whether all query heads of a KV head go together.
        compute: Precision and kernels.
        progress: Called after every batch, and after every measured layer.

    Raises:
        HeadjaxError: Second moments or an effect are not finite, or the model has no such head stack.
        DataError: There are no batches.
        ConfigError: A batch does not divide over the mesh.
    """
    chosen = tuple(model.config.attentions()) if stacks is None else tuple(stacks)
    for stack in chosen:
        require_stack(model.config, stack)
    model, batches = spread(model, batches)
    layers = [layer for layer in attention_layers(model) if layer.stack in chosen and layer.config.num_heads]
    measure = _Measure(model, batches, compute)
    moments = _collect(model, batches, compute, progress)
    effects: list[np.ndarray] = []
    removals: list[Removals] = []
    for done, layer in enumerate(layers):
        found, mean = _removals(model, layer, moments, whole_groups)
        effects.append(_effects(layer, found, mean, measure))
        removals.append(found._replace(outputs=[]))
        if progress is not None:
            progress(len(batches), {"layers": done + 1.0})
    return _merged(model.config, layers, removals, effects)


def batches_for(batches: Sequence[Any], examples: int) -> list[Any]:
    """Return batches that hold about this number of examples, spread evenly over all.

    Calibration batches are sorted by length, so that the first ones would hold the shortest texts.
    """
    size = max(sum(len(next(iter(batch.values()))) for batch in batches) / max(len(batches), 1), 1.0)
    count = min(max(round(examples / size), 1), len(batches))
    return [batches[int((place + 0.5) * len(batches) / count)] for place in range(count)]


def _removals(
    model: Model, layer: LayerModule, moments: Mapping[str, Sequence[np.ndarray]], whole_groups: bool
) -> tuple[Removals, np.ndarray]:
    """Return the removals of a layer, and the mean of its contexts that its bias takes up (0 without a bias)."""
    tied = model.config.site(layer.stack, layer.layer).tied
    sums = np.sum([moments[layer.stack][i] for i in tied], axis=0)
    if not np.isfinite(sums).all():
        raise HeadjaxError(f"reconstruction: {layer.stack}/{layer.layer}: second moments of contexts are not finite")
    tokens = max(float(sums[-1, -1]), 1.0)
    mean = sums[-1, :-1] / tokens * (output_map(layer.module).bias is not None)
    second = sums[:-1, :-1] / tokens - np.outer(mean, mean)
    groups: dict[int, Positions] = {}
    for place, group in enumerate(layer.config.groups if whole_groups else range(layer.config.num_heads)):
        groups[group] = (*groups.get(group, ()), place)
    output = np.asarray(fetch(layer.module.output_matrices()), np.float64)
    return layer_removals(second, output, list(groups.values())), mean


def _effects(layer: LayerModule, found: Removals, mean: np.ndarray, measure: _Measure) -> np.ndarray:
    """Return the effect of 0, 1, ... removals, measured at a few numbers and set between them by error."""
    removals = len(found.order)
    counts = sorted({0} | {max(round(removals * point / POINTS), 1) for point in range(1, POINTS + 1)})
    values = [0.0] + [measure(layer, found, mean, count) for count in counts[1:]]
    return np.interp(found.errors, found.errors[counts], np.maximum.accumulate(values))


def _merged(
    config: ModelConfig, layers: Sequence[LayerModule], removals: Sequence[Removals], effects: Sequence[np.ndarray]
) -> Order:
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
        layer = layers[i]
        heads = [layer.config.ids[place] for place in removals[i].order[done[i]]]
        done[i] += 1
        tied = config.site(layer.stack, layer.layer).tied
        order.extend(HeadId(layer.stack, depth, head) for depth in tied for head in heads)
    return tuple(order)


class _Measure:
    """Effect on the model when one layer loses heads."""

    def __init__(self, model: Model, batches: Sequence[dict[str, jax.Array]], compute: Compute) -> None:
        effect = OutputChange(model.config)
        self._config = model.config
        self._damage = Damage(model, batches_for(batches, effect.limit), effect, compute)

    def __call__(self, layer: LayerModule, found: Removals, mean: np.ndarray, count: int) -> float:
        """Return the effect of `count` removals of a layer, its W_O and bias refitted; removed heads have rows of 0."""
        site = self._config.site(layer.stack, layer.layer)
        first = self._damage.block(site.stack, layer.layer)
        changed = copied(self._damage.blocks[first].layer)
        weight, bias = output_map(getattr(changed, site.slot))
        output = found.outputs[count]
        weight.set_raw_value(jnp.asarray(output, weight.get_raw_value().dtype))
        if bias is not None:
            lost = (found.outputs[0] - output).reshape(len(mean), -1)
            shifted = np.asarray(fetch(bias.get_raw_value())) + mean @ lost
            bias.set_raw_value(jnp.asarray(shifted, weight.get_raw_value().dtype))
        blocks = {
            first + number: self._damage.blocks[first + number].holding(changed) for number in range(len(site.tied))
        }
        return self._damage(blocks, f"reconstruction: {layer.stack}/{layer.layer}, without {count} of its heads")


def _collect(
    model: Model, batches: Sequence[dict[str, jax.Array]], compute: Compute, progress: Update | None
) -> dict[str, list[np.ndarray]]:
    """Return sums of x x^T of every layer's contexts and a 1, over the tokens."""

    def check(number: int, fetched: Any) -> None:
        if progress is not None:
            progress(number + 1, {})

    step = functools.partial(_moments, model.config, model.params, compute)
    found: dict[str, list[np.ndarray]] = sum_over(map(step, batches), check)
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

    return config.apply(params, batch, Options(probe=second, compute=compute)).require_probes()
