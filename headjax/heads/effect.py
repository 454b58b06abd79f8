"""Effect of a change on a model: how far its output moves, or how much its loss rises."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import jax

from headjax.core.errors import DataError
from headjax.heads.agreement import Predictions, agreement_kind, compare, mean_agreement, predictions_of
from headjax.heads.statistics import sum_over
from headjax.models.config import Batch, Loss, ModelConfig, Output
from headjax.models.inputs import device_batch
from headjax.models.model import Model
from headjax.nn.compute import Compute
from headjax.nn.passes import Pass

LABELLED = 256
"""Number of examples on which a rise of the loss is measured, which differs more from example to example."""


@dataclasses.dataclass(frozen=True)
class OutputChange:
    """Change of the model's own output (`headjax.heads.agreement`), at least 0."""

    config: ModelConfig

    def read(self, output: Output, batch: Batch) -> Predictions:
        """Return the compared part of a batch's output."""
        return predictions_of(self.config, output, batch)

    def value(self, pairs: Iterable[tuple[Predictions, Predictions]]) -> float:
        """Return the effect, from the readings of every batch before and after the change."""
        kind = agreement_kind(self.config)
        return max(mean_agreement(kind, (compare(kind, whole, changed) for whole, changed in pairs)).apart, 0.0)


@dataclasses.dataclass(frozen=True)
class LossRise:
    """Rise of the mean loss of a target; below 0 where heads did harm."""

    config: ModelConfig

    def read(self, output: Output, batch: Batch) -> Loss:
        """Return the losses of a batch."""
        return self.config.for_evaluation().loss(output, batch)

    def value(self, pairs: Iterable[tuple[Loss, Loss]]) -> float:
        """Return the effect, of the losses of every batch before and after the change."""
        risen, targets = sum_over(
            (changed.total.sum() - whole.total.sum(), whole.weight.sum()) for whole, changed in pairs
        )
        if targets == 0.0:
            raise DataError("batches: there is no example with a label to compare layers by")
        return float(risen / targets)


Effect = OutputChange | LossRise


def effect_between(
    effect: Effect, whole: Model, changed: Model, batches: Iterable[Batch], compute: Compute = Compute()
) -> float:
    """Return the effect on these examples of another model of the same task in the place of the whole one."""
    placed = (device_batch(whole.config, batch) for batch in batches)
    return effect.value(
        (
            _read(effect, whole, compute, batch),
            _read(effect, changed, compute, batch),
        )
        for batch in placed
    )


@functools.partial(jax.jit, static_argnames=("effect", "compute"))
def _read(effect: Effect, model: Model, compute: Compute, batch: Any) -> Any:
    return effect.read(model.forward(batch, Pass(compute=compute)), batch)
