"""When a training run counts as diverged."""

from __future__ import annotations

import math

from headjax.training.step import StepMetrics


def why_diverged(step: int, measured: StepMetrics, limit: float | None) -> str | None:
    """Why a step's measurements mean that the run has diverged, in a line; None if they do not.

    The loss is that before the step; a gradient that is not finite has made the parameters after it unusable.

    Args:
        step: number of the step.
        measured: what it reported.
        limit: the largest loss of a run that has not diverged, in nats per target; None is any finite one.
    """
    loss, norm = float(measured.loss), float(measured.gradient_norm)
    if not math.isfinite(loss):
        return f"the loss of step {step} is {loss}"
    if not math.isfinite(norm):
        return f"the gradient of step {step} has norm {norm}"
    if limit is not None and loss > limit:
        return f"the loss of step {step} is {loss:.4g}, more than diverged_above={limit:g}"
    return None
