"""Evaluation: losses of every batch, reduced to metrics."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from headjax.core.errors import DataError, HeadjaxError
from headjax.core.tensors import Params, require_finite
from headjax.models.compute import Compute
from headjax.models.config import Batch, Gates, Loss, ModelConfig, Options
from headjax.models.inputs import device_batch
from headjax.models.model import Model


def evaluate(
    model: Model, batches: Iterable[Batch], *, gates: Gates | None = None, compute: Compute = Compute()
) -> Mapping[str, float]:
    """The model's metrics on batches with labels, see `evaluate_batches`.

    Args:
        model: the model.
        batches: arrays by Hugging Face's names; equal shapes compile once.
        gates: head gates; any values reuse one compilation.
        compute: how to compute.

    Raises:
        DataError: there is no target at all, or a token or label that the model does not have.
        HeadjaxError: a loss is not finite; the message names the batch.
    """
    losses: list[Loss] = []

    def step(params: Params, batch: Batch) -> Loss:
        losses.append(batch_loss(model.config, params, batch, gates, compute))
        return losses[-1]

    found = evaluate_batches(step, model.params, batches)
    require_finite_losses(losses, model.params)
    return found


def require_finite_losses(losses: Sequence[Loss], params: Params) -> None:
    """Raises `HeadjaxError` naming the first batch whose loss is not finite, or the weights that are not."""
    for number, loss in enumerate(losses):
        total = np.asarray(loss.total)
        if not np.isfinite(total).all():
            require_finite(params)
            value = total[~np.isfinite(total)][0]
            raise HeadjaxError(f"evaluation: the loss of batch {number}, counted from 0, is {value}")


def evaluate_batches(
    step: Callable[[Params, Batch], Loss], params: Params, batches: Iterable[Batch]
) -> Mapping[str, float]:
    """Mean loss over all targets of all batches, and its exponential.

    Args:
        step: the jitted evaluation of one batch.
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


def batch_loss(config: ModelConfig, params: Params, batch: Batch, gates: Gates | None, compute: Compute) -> Loss:
    """Per-example losses of one batch, jitted once per config and shapes."""
    arrays = device_batch(config, batch)
    return _batch_loss(config, params, arrays, gates, compute)


@functools.partial(jax.jit, static_argnums=(0, 4))
def _batch_loss(config: ModelConfig, params: Params, batch: Any, gates: Any, compute: Compute) -> Loss:
    output = config.apply(params, batch, Options(gates=gates, compute=compute))
    return config.for_evaluation().loss(output, batch)
