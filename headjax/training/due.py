"""What falls due after a step."""

from __future__ import annotations

from typing import NamedTuple

from headjax.training.config import TrainConfig


class Due(NamedTuple):
    """What falls due after a step.

    Attributes:
        record: its metrics are recorded.
        save: a checkpoint is written.
        evaluate: the validation split is evaluated; the end of a run has an evaluation of its own.
        stop: it is the last one.
    """

    record: bool
    save: bool
    evaluate: bool
    stop: bool


def due_after(number: int, config: TrainConfig, *, first: bool, stopping: bool) -> Due:
    """What falls due after step `number`, counted from 1.

    Args:
        number: of the step.
        config: the run.
        first: whether this process did no step before.
        stopping: whether the run is asked to stop.
    """
    stop = stopping or number == config.steps
    return Due(
        record=first or stop or number % config.log_every == 0,
        save=stop or number % config.checkpoint_every == 0,
        evaluate=not stop and config.evaluate_every > 0 and number % config.evaluate_every == 0,
        stop=stop,
    )
