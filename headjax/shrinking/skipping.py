"""The damage of a layer that goes: the model's output where the stream passes by it, against its own."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from headjax.core.errors import HeadjaxError
from headjax.heads.agreement import Predictions, agreement_kind, compare, predictions_of
from headjax.heads.statistics import sum_over
from headjax.models.config import Batch
from headjax.models.model import Model
from headjax.models.walk import LayerBlock, State, blocks_of, embed, step
from headjax.nn.compute import Compute


def skipped_damages(
    model: Model, batches: Sequence[Batch], *, labels: bool = False, compute: Compute = Compute()
) -> dict[str, float]:
    """Return the damage of every layer, by `stack/number`: nothing is repaired.

    A large error bends the layers behind it, so that second order misleads: the first layers then look harmless. One
    walk takes the streams without each of the layers so far beside the model's own, half a plain pass a layer.
    """
    found = sum_over(_apart(model, batch, labels, compute) for batch in batches)
    damages = {name: float(total / max(weight, 1.0)) for name, (total, weight) in found.items()}
    if agreement_kind(model.config) == "cosine" and not labels:
        damages = {name: 1.0 - cosine for name, cosine in damages.items()}
    for name, damage in damages.items():
        if not abs(damage) < float("inf"):
            raise HeadjaxError(f"{name}: the output is not finite")
    return damages


def _apart(model: Model, batch: Batch, labels: bool, compute: Compute) -> dict[str, Any]:
    """Return the sums of `compare` of one batch, by layer."""
    own: State = embed(model, batch, compute)
    without: dict[str, State] = {}
    for block in blocks_of(model):
        passed = {name: step(block, state, compute) for name, state in without.items()}
        if isinstance(block, LayerBlock):
            passed[f"{block.stack}/{block.place.value}"] = own
        own, without = step(block, own, compute), passed
    whole = _read(model, own, labels, compute)
    return {name: _compared(model, whole, state, labels, compute) for name, state in without.items()}


@functools.partial(jax.jit, static_argnames=("labels", "compute"))
def _read(model: Model, state: State, labels: bool, compute: Compute) -> Predictions:
    """Return a model's predictions after its last block, or its losses."""
    output = model.finish(state, compute)
    if labels:
        return Predictions(*model.config.for_evaluation().loss(output, state.batch))
    return predictions_of(model.config, output, state.batch)


def _compared(model: Model, whole: Predictions, state: State, labels: bool, compute: Compute) -> Any:
    """Return the sum of the measure over one batch, or of the rise of the loss, and its weight."""
    other = _read(model, state, labels, compute)
    if labels:
        return (other.values - whole.values).sum(), whole.weight.sum()
    return compare(agreement_kind(model.config), whole, other)
