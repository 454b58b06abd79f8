"""Evaluation on batches: the losses of every batch, reduced to metrics."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from headjax.core.errors import DataError, HeadjaxError
from headjax.core.tensors import Params, require_finite
from headjax.evaluation.measures import Measure
from headjax.mesh.mesh import replicated
from headjax.models.compute import Compute
from headjax.models.config import Batch, Gates, Loss, ModelConfig, Options
from headjax.models.inputs import device_batch
from headjax.models.model import Model


def evaluate(
    model: Model, batches: Iterable[Batch], *, gates: Gates | None = None, compute: Compute = Compute()
) -> Mapping[str, float]:
    """Return the model's metrics on batches with labels, see `mean_loss`.

    Args:
        model: the model.
        batches: arrays by Hugging Face's names; equal shapes compile once.
        gates: head gates; all values share one compilation.
        compute: precision and attention implementation.

    Raises:
        DataError: no targets, or a token or label that the model does not have.
        HeadjaxError: a loss is not finite; the message names the batch.
    """
    losses = [
        measure_batch(model.config, None, compute, model.params, device_batch(model.config, batch), gates)[0]
        for batch in batches
    ]
    require_finite_losses(losses, model.params)
    return mean_loss(losses)


@functools.partial(jax.jit, static_argnames=("config", "measure", "compute", "mesh"))
def measure_batch(
    config: ModelConfig,
    measure: Measure | None,
    compute: Compute,
    params: Params,
    batch: Batch,
    gates: Gates | None = None,
    *,
    mesh: Mesh | None = None,
) -> tuple[Loss, dict[str, jax.Array]]:
    """Return one batch's losses and a measure's outcomes, jitted once per config, measure and shapes.

    Args:
        config: the architecture.
        measure: the measure; None has no outcomes besides the losses.
        compute: how to compute.
        params: the model's parameters.
        batch: arrays on the device or, spread over its batch axes, on the mesh.
        gates: head gates; any values reuse one compilation.
        mesh: the devices, each of which gets the whole result; None is a single device.
    """
    # Attention kernels that XLA cannot partition spread themselves over the mesh they find here.
    with contextlib.nullcontext() if mesh is None else jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        output = config.apply(params, batch, Options(gates=gates, compute=compute))
        loss = config.for_evaluation().loss(output, batch)
        outcomes = {} if measure is None else measure.outcomes()
        found = loss, {name: outcome(output, batch) for name, outcome in outcomes.items()}
    return found if mesh is None else jax.lax.with_sharding_constraint(found, replicated(mesh))


def require_finite_losses(losses: Sequence[Loss], params: Params) -> None:
    """Raise `HeadjaxError` naming the first batch whose loss is not finite, or the weights that are not."""
    for number, loss in enumerate(losses):
        total = np.asarray(loss.total)
        if not np.isfinite(total).all():
            require_finite(params)
            value = total[~np.isfinite(total)][0]
            raise HeadjaxError(f"evaluation: the loss of batch {number}, counted from 0, is {value}")


def mean_loss(losses: Sequence[Loss]) -> Mapping[str, float]:
    """Return the mean loss over all targets of all batches, and its exponential.

    Args:
        losses: the losses of every batch.

    Returns:
        `loss` in nats per target, `perplexity` = exp(loss), and `targets`, the number of targets.

    Raises:
        DataError: no targets.
    """
    total, weight = (
        float(sum(np.asarray(array, np.float64).sum() for array in arrays))
        for arrays in ([loss.total for loss in losses], [loss.weight for loss in losses])
    )
    if weight == 0.0:
        raise DataError("evaluation: the data holds no targets")
    mean = total / weight
    return {"loss": mean, "perplexity": math.exp(min(mean, 700.0)), "targets": weight}
