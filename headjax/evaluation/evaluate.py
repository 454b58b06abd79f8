"""Evaluation: losses of every batch, reduced to metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from headjax.errors import DataError
from headjax.models.base import Batch, Loss
from headjax.tensors import Params


def evaluate_batches(
    step: Callable[[Params, Batch], Loss], params: Params, batches: Iterable[Batch]
) -> Mapping[str, float]:
    """Mean loss over all targets of all batches, and its exponential.

    Args:
        step: the jitted evaluation step.
        params: the model's parameters.
        batches: the batches.

    Returns:
        `loss` in nats per target, `perplexity` = exp(loss), and `targets`, how many were counted.

    Raises:
        DataError: there is no target at all.
    """
    losses = [step(params, batch) for batch in batches]
    total = float(sum(np.asarray(loss.total, np.float64).sum() for loss in losses))
    weight = float(sum(np.asarray(loss.weight, np.float64).sum() for loss in losses))
    if weight == 0.0:
        raise DataError("evaluation: the data holds no targets")
    mean = total / weight
    return {"loss": mean, "perplexity": math.exp(min(mean, 700.0)), "targets": weight}
