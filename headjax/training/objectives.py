"""Settings and objective of distillation: the loss of a student and how far it is from the answers of a teacher."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headjax.core.errors import require
from headjax.core.fields import Checked, Count, NotNegative, Positive, Steps
from headjax.heads.agreement import divergence
from headjax.models.config import Batch, Loss, ModelConfig, Output
from headjax.models.inputs import counted_at
from headjax.models.tasks import Regression, SentenceSimilarity, Span
from headjax.models.tasks.text import cosines
from headjax.training.optimizer import AdamW, LinearDecay, Optimizer
from headjax.training.step import Objective

Term = Callable[[Output, Batch, Loss], Loss]
"""From a model's output, its batch and its own loss to one term of an objective."""


TEACHER = "teacher"
"""Name of the teacher's `Answers` in a student's batch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation(Checked):
    """Sources that a student learns from, and their weights.

        task * L + logits * T^2 KL(softmax(z' / T) || softmax(z / T)) + hidden * mean((h - h')^2)

    L is the task's own loss; z and h are the student's logits and last hidden states, z' and h' the teacher's (Hinton
    et al. 2015; hidden states as in TinyBERT, Jiao et al. 2020). The divergence is a mean over predictions: examples of
    a classifier, both ends of a span, tokens that are not padding elsewhere. Where a model predicts numbers
    (regression, similarity of sentences), their squared difference takes its place.

    Attributes:
        steps: optimizer steps.
        optimizer: optimizer and learning-rate schedule.
        task, logits, hidden: weights of the three parts.
        temperature: T.
        seed: of dropout.
    """

    steps: Steps
    optimizer: Optimizer = AdamW(schedule=LinearDecay(peak=5e-5))
    task: NotNegative = 1.0
    logits: NotNegative = 1.0
    hidden: NotNegative = 0.0
    temperature: Positive = 2.0
    seed: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.optimizer.check(self.steps)
        require(self.task + self.logits + self.hidden > 0.0, "task", "all weights are 0, there is nothing to learn")


class Answers(NamedTuple):
    """A teacher's outputs on a batch, as far as a student is compared with them."""

    predictions: tuple[jax.Array, ...]
    hidden: jax.Array | None


def distillation_objective(student: ModelConfig, settings: Distillation) -> Objective:
    """Return the objective of `Distillation`, for batches that hold the teacher's `Answers` as `teacher`.

    A term of weight 0 is not computed; without a term of the teacher's, no answers are needed.
    """
    terms: tuple[tuple[float, Term], ...] = (
        (settings.task, lambda given, batch, own: own),
        (settings.logits, functools.partial(_divergence, student, settings.temperature)),
        (settings.hidden, functools.partial(_hidden_difference, student)),
    )
    kept = [(weight, term) for weight, term in terms if weight]

    def losses_of(given: Output, batch: Batch) -> tuple[Loss, ...]:
        own = student.loss(given, batch)
        return tuple(term(given, batch, own) for _, term in kept)

    return Objective(losses_of, tuple(weight for weight, _ in kept))


def answers_of(task: Any, output: Output, batch: Batch, settings: Distillation) -> Answers:
    """Return the part of a teacher's output that the objective compares."""
    return Answers(
        _predictions(task, output, batch) if settings.logits else (), output.hidden if settings.hidden else None
    )


def _divergence(student: ModelConfig, temperature: float, given: Output, batch: Batch, own: Loss) -> Loss:
    """Return T^2 KL(teacher || student) of every prediction, or squared differences of predicted numbers."""
    task = getattr(student, "task", None)
    pairs = list(zip(_predictions(task, given, batch), batch[TEACHER].predictions, strict=True))
    if isinstance(task, Regression | SentenceSimilarity):
        each = [jnp.square(mine - theirs).reshape(mine.shape[0], -1).mean(axis=-1) for mine, theirs in pairs]
    else:
        each = [temperature**2 * divergence(theirs, mine, temperature) for mine, theirs in pairs]
    return _over_counted(student, functools.reduce(jnp.add, each) / len(each), batch, own)


def _hidden_difference(student: ModelConfig, given: Output, batch: Batch, own: Loss) -> Loss:
    """Return the mean squared difference of every token's last hidden state from the teacher's."""
    squares = jnp.square(given.hidden - batch[TEACHER].hidden).astype(jnp.float32).mean(axis=-1)
    return _over_counted(student, squares, batch, own)


def _predictions(task: Any, output: Output, batch: Batch) -> tuple[jax.Array, ...]:
    """Return logits whose last axis counts the choices, or predicted numbers."""
    if isinstance(task, SentenceSimilarity):
        return (cosines(output, batch),)
    if isinstance(task, Span):
        return (output.require_logits("start_logits"), output.require_logits("end_logits"))
    return (output.require_logits(),)


def _over_counted(student: ModelConfig, values: jax.Array, batch: Batch, own: Loss) -> Loss:
    """Return values `[batch]` or `[batch, length]` as losses of the examples and tokens that are no padding."""
    counted = (own.weight > 0).astype(jnp.float32)
    if values.ndim == 1:
        return Loss(values * counted, counted)
    by_token = counted_at(student.counted(batch), values.shape) * counted[:, None]
    return Loss((values * by_token).sum(axis=1), by_token.sum(axis=1))
