"""The damage of a layer that goes: the model's output where the stream passes by it, against its own.

The attention of the layer behind it is refitted to make up for it, as all layers behind are once it is gone.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.core.kind import own_copy
from headjax.heads.agreement import Predictions, agreement_kind, compare, predictions_of
from headjax.heads.batches import sum_over
from headjax.heads.refit import refit
from headjax.heads.site import at_path
from headjax.heads.sums import LayerStep, States
from headjax.heads.surgery import output_map, with_change
from headjax.models.config import Batch
from headjax.models.model import Model
from headjax.models.walk import FEED_FORWARD, LayerBlock, blocks_of, embed, step
from headjax.nn.block import Compute, State

Compensation = Mapping[str, jax.Array]
"""Arrays of the output maps of a layer, by path, that make up for the layer before it."""


def compensation_for(
    block: LayerBlock, states: Sequence[State], without: Sequence[State], compute: Compute
) -> Compensation:
    """Return the output maps of a layer's attentions, refitted for what enters it `without` the layer before.

    Each map makes up for what the stream lacks of the original one, as the build's do. The feed-forward is left as it
    is: solving its many units would take more than all other work on a layer, for little gain.
    """
    slots = [slot for slot in block.layer.config.slots if slot != FEED_FORWARD]
    here = LayerStep([(block, block)], list(map(States, states, without)), compute, slots=slots)
    for slot in slots:
        weight, bias = output_map(getattr(here.layer, slot))
        if weight is None:
            continue
        sums, scale = here.sums(slot)
        kept = np.ones(sums.gram.shape[-1] - 1, bool)
        solved = refit(sums, kept, bias=bias is not None, scale=scale)
        if solved.helps:
            here.replace_layer(with_change(here.layer, slot, solved.change))
    return here.changed


def skipped_damages(
    model: Model,
    batches: Sequence[Batch],
    compensations: Mapping[str, Compensation],
    *,
    labels: bool = False,
    compute: Compute = Compute(),
) -> dict[str, float]:
    """Return the damage of every layer, by `stack/number`, with these maps of the layer behind it.

    A large error bends the layers behind it, so that second order misleads: the first layers then look harmless. One
    walk takes the streams without each of the layers so far beside the model's own, half a plain pass a layer.
    """
    sums = sum_over(_sums_of_batch(model, batch, compensations, labels, compute) for batch in batches)
    damages = {name: float(total / max(weight, 1.0)) for name, (total, weight) in sums.items()}
    if agreement_kind(model.config) == "cosine" and not labels:
        damages = {name: 1.0 - cosine for name, cosine in damages.items()}
    for name, damage in damages.items():
        if not abs(damage) < float("inf"):
            raise HeadjaxError(f"{name}: the output is not finite")
    return damages


def _sums_of_batch(
    model: Model, batch: Batch, compensations: Mapping[str, Compensation], labels: bool, compute: Compute
) -> dict[str, Any]:
    """Return the sums of the measure of one batch, or of the rise of the loss, with weights by the layer left out."""
    state: State = embed(model, batch, compute)
    without: dict[str, State] = {}
    last = ""
    for block in blocks_of(model):
        passed = {name: step(block, each, compute) for name, each in without.items() if name != last}
        if last:
            behind = block
            if isinstance(block, LayerBlock) and last in compensations:
                layer = own_copy(block.layer)
                for path, array in compensations[last].items():
                    at_path(layer, path.replace("/", ".")).set_raw_value(array)
                behind = block.holding(layer)
            passed[last] = step(behind, without[last], compute)
        if isinstance(block, LayerBlock):
            last = f"{block.stack}/{block.place.value}"
            passed[last] = state
        state, without = step(block, state, compute), passed
    whole, sums = _read(model, state, labels, compute), {}
    for name, each in without.items():
        other = _read(model, each, labels, compute)
        if labels:
            sums[name] = (other.values - whole.values).sum(), whole.weight.sum()
        else:
            sums[name] = compare(agreement_kind(model.config), whole, other)
    return sums


@functools.partial(jax.jit, static_argnames=("labels", "compute"))
def _read(model: Model, state: State, labels: bool, compute: Compute) -> Predictions:
    """Return a model's predictions after its last block, or its losses."""
    output = model.finish(state, compute)
    if labels:
        return Predictions(*model.losses(output, state.batch, smoothed=False))
    return predictions_of(model.config, output, state.batch)
