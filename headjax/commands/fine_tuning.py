"""Fine-tuning with a teacher, for the commands that change models."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.models.model import Model
    from headjax.training.distillation import Distillation


def add_fine_tuning_arguments(parser: argparse.ArgumentParser) -> None:
    """`--fine-tune` and what is learned from."""
    parser.add_argument(
        "--fine-tune", type=int, default=0, metavar="N", help="fine-tune for N steps afterwards (default %(default)s)"
    )
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=5e-5,
        metavar="R",
        help="peak learning rate of fine-tuning (default %(default)s)",
    )
    parser.add_argument(
        "--labels", type=float, default=1.0, metavar="W", help="fine-tuning: weight of the task's own loss (default 1)"
    )
    parser.add_argument(
        "--distill",
        type=float,
        default=1.0,
        metavar="W",
        help="fine-tuning: weight of the original model's logits (default 1)",
    )
    parser.add_argument(
        "--distill-hidden",
        type=float,
        default=0.0,
        metavar="W",
        help="fine-tuning: weight of the original model's hidden states (default %(default)s)",
    )


def fine_tuning_of(options: argparse.Namespace) -> Distillation | None:
    """What the arguments ask for; None is no training.

    Raises:
        HeadjaxError: a number that cannot be, or no task to train on.
    """
    from headjax.training.distillation import Distillation
    from headjax.training.optimizer import AdamW, LinearDecay

    if options.fine_tune < 0:
        raise HeadjaxError(f"--fine-tune: must not be negative, got {options.fine_tune}")
    if not options.fine_tune:
        return None
    if not options.task:
        raise HeadjaxError("--task: needed to fine-tune on")
    if not options.learning_rate > 0.0:
        raise HeadjaxError(f"--learning-rate: must be positive, got {options.learning_rate:g}")
    for name in ("labels", "distill", "distill_hidden"):
        if not getattr(options, name) >= 0.0:
            raise HeadjaxError(f"--{name.replace('_', '-')}: must not be negative, got {getattr(options, name):g}")
    return Distillation(
        steps=options.fine_tune,
        optimizer=AdamW(schedule=LinearDecay(peak=options.learning_rate, warmup_steps=options.fine_tune // 10)),
        task=options.labels,
        logits=options.distill,
        hidden=options.distill_hidden,
        seed=options.seed,
    )


def fine_tune(
    student: Model,
    teacher: Model,
    task: Task,
    settings: Distillation,
    options: argparse.Namespace,
    progress: Progress,
) -> Model:
    """The student after its lessons; it keeps the output that it had."""
    from headjax.training.distillation import distill

    batches = task.train_batches(options.batch_size, seed=options.seed, buckets=options.buckets)
    with progress("fine-tuning", settings.steps, "step") as bar:
        tuned = distill(task.fit(student), task.fit(teacher), batches, settings, progress=bar).model
    return student.replace(params=tuned.params, history=tuned.history)
