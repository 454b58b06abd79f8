"""Effect of a change on a model: how far its output moves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar

from headjax.heads.agreement import Predictions, agreement_kind, compare, mean_agreement, predictions_of
from headjax.models.config import Batch, ModelConfig, Output

MEASURED = 64
"""Number of examples on which a change of the model's output is measured."""

LABELLED = 256
"""Number of examples on which a rise of the loss is measured, which differs more from example to example."""


@dataclasses.dataclass(frozen=True)
class OutputChange:
    """Change of the model's own output (`headjax.heads.agreement`), at least 0."""

    config: ModelConfig
    limit: ClassVar[int] = MEASURED

    def read(self, output: Output, batch: Batch) -> Predictions:
        """Return the compared part of a batch's output."""
        return predictions_of(self.config, output, batch)

    def value(self, pairs: Iterable[tuple[Predictions, Predictions]]) -> float:
        """Return the effect, from the readings of every batch before and after the change."""
        kind = agreement_kind(self.config)
        return max(mean_agreement(kind, (compare(kind, whole, changed) for whole, changed in pairs)).apart, 0.0)
