"""Settings and objective of distillation: the loss of a student and how far it is from the answers of a teacher."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from headjax.core.errors import require
from headjax.core.fields import Checked, Count, NotNegative, Positive, Ramp, Steps
from headjax.heads.agreement import divergence
from headjax.heads.statistics import counted_queries
from headjax.models.config import Batch, Loss, ModelConfig, Output
from headjax.models.inputs import counted_at
from headjax.models.layer import Probe
from headjax.models.tasks import Regression, SentenceSimilarity, Span
from headjax.models.tasks.text import cosines
from headjax.training.optimizer import AdamW, LinearDecay, Optimizer
from headjax.training.step import Factor, Objective, factor_at

Term = Callable[[Output, Batch, Loss, jax.Array], Loss]
"""From a model's output, its batch, its own loss and the number of steps done to one term of an objective."""


TEACHER = "teacher"
"""Name of the teacher's `Answers` in a student's batch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation(Checked):
    """Sources that a student learns from, and their weights.

        task * L + logits * T^2 KL(softmax(z' / T) || softmax(z / T)) + hidden * mean((h - h')^2)
            + attention * mean(1 - cos(a, a'))

    L is the task's own loss; z and h are the student's logits and last hidden states, a the outputs of its attention
    layers, z', h' and a' the teacher's (Hinton et al. 2015; hidden states as in TinyBERT, Jiao et al. 2020). The
    divergence is a mean over predictions: examples of a classifier, both ends of a span, tokens that are not padding
    elsewhere. Where a model predicts numbers (regression, similarity of sentences), their squared difference takes its
    place. The cosine is a mean over tokens and attention layers, cross-attention included.

    Every weight and the temperature may change along training. MaxText's guide to pruned models recommends
    `task=Ramp(0.1, 0.5)`, `logits=Ramp(0.9, 0.5)`, `temperature=Ramp(2.0, 1.0)` and `attention=Ramp(1.0, 0.1)`.

    Attributes:
        steps: optimizer steps.
        optimizer: optimizer and learning-rate schedule.
        task, logits, hidden, attention: weights of the four parts.
        temperature: T.
        seed: of dropout.
    """

    steps: Steps
    optimizer: Optimizer = AdamW(schedule=LinearDecay(peak=5e-5))
    task: NotNegative | Ramp = 1.0
    logits: NotNegative | Ramp = 1.0
    hidden: NotNegative | Ramp = 0.0
    attention: NotNegative | Ramp = 0.0
    temperature: Positive | Ramp = 2.0
    seed: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.optimizer.check(self.steps)
        weights = (self.task, self.logits, self.hidden, self.attention)
        require(any(map(used, weights)), "task", "all weights are 0, there is nothing to learn")
        if isinstance(self.temperature, Ramp):
            coldest = min(self.temperature.start, self.temperature.end)
            require(coldest > 0.0, "temperature", f"must be positive, got {self.temperature}")


def used(weight: float | Ramp) -> bool:
    """Return whether a weight is other than 0 at any step."""
    return max(weight.start, weight.end) > 0.0 if isinstance(weight, Ramp) else weight > 0.0


def _along(number: float | Ramp, steps: int) -> Factor:
    """Return a number, or the function from steps done to it."""
    if isinstance(number, Ramp):
        return optax.linear_schedule(number.start, number.end, max(steps - 1, 1))
    return number


class Answers(NamedTuple):
    """A teacher's outputs on a batch, as far as a student is compared with them.

    Attributes:
        predictions: logits whose last axis counts the choices, or predicted numbers: one array, of a span two.
        hidden: last hidden states `[batch, length, width]`; None where they are not compared.
        attention: `[batch, query, width]` outputs of every attention layer, by head stack; None likewise.
    """

    predictions: tuple[jax.Array, ...]
    hidden: jax.Array | None
    attention: dict[str, list[jax.Array]] | None = None


def distillation_objective(student: ModelConfig, settings: Distillation) -> Objective:
    """Return the objective of `Distillation`, for batches that hold the teacher's `Answers` as `teacher`.

    A term of weight 0 is not computed; without a term of the teacher's, no answers are needed.

    Args:
        student: the student's architecture.
        settings: the weights and the temperature.
    """
    temperature = _along(settings.temperature, settings.steps)
    terms: tuple[tuple[float | Ramp, Term], ...] = (
        (settings.task, lambda given, batch, own, step: own),
        (
            settings.logits,
            lambda given, batch, own, step: _divergence(student, factor_at(temperature, step), given, batch, own),
        ),
        (settings.hidden, lambda given, batch, own, step: _hidden_difference(student, given, batch, own)),
        (settings.attention, lambda given, batch, own, step: _attention_difference(student, given, batch, own)),
    )
    kept = [(weight, term) for weight, term in terms if used(weight)]

    def losses_of(given: Output, batch: Batch, step: jax.Array) -> tuple[Loss, ...]:
        own = student.loss(given, batch)
        return tuple(term(given, batch, own, step) for _, term in kept)

    weights = tuple(_along(weight, settings.steps) for weight, _ in kept)
    return Objective(losses_of, weights, attention_output if used(settings.attention) else None)


def attention_output(probe: Probe) -> jax.Array:
    """Probe: the output of the attention layer, `[batch, query, width]`, 0 at padding."""
    output = jnp.broadcast_to(probe.module.combine(probe.attended.context), probe.inputs.shape)
    return output * counted_queries(probe)[..., None].astype(output.dtype)


def answers_of(task: Any, output: Output, batch: Batch, settings: Distillation) -> Answers:
    """Return the part of a teacher's output that the objective compares.

    Args:
        task: the student's task, `output` of its config; None where its config has none.
        output: the teacher's output.
        batch: the batch.
        settings: the weights.
    """
    return Answers(
        _predictions(task, output, batch) if used(settings.logits) else (),
        output.hidden if used(settings.hidden) else None,
        output.require_probes() if used(settings.attention) else None,
    )


def _divergence(student: ModelConfig, temperature: float | jax.Array, given: Output, batch: Batch, own: Loss) -> Loss:
    """Return T^2 KL(teacher || student) of every prediction, or squared differences of predicted numbers."""
    task = getattr(student, "output", None)
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


def _attention_difference(student: ModelConfig, given: Output, batch: Batch, own: Loss) -> Loss:
    """Return 1 - cos of every token's attention output and the teacher's, as a mean over attention layers.

    A token whose output is 0 in the teacher, padding above all, has no direction to learn and adds nothing.
    """
    mine, theirs = given.require_probes(), batch[TEACHER].attention
    layers = [pair for stack in mine for pair in zip(mine[stack], theirs[stack], strict=True)]
    totals, weights = zip(*[_turned(*pair) for pair in layers], strict=True)
    counted = (own.weight > 0).astype(jnp.float32)
    return Loss(functools.reduce(jnp.add, totals) * counted, functools.reduce(jnp.add, weights) * counted)


def _turned(mine: jax.Array, theirs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the sum of 1 - cos over an example's tokens, and the number of tokens that have an output, `[batch]`."""
    mine, theirs = mine.astype(jnp.float32), theirs.astype(jnp.float32)
    sizes = jnp.square(mine).sum(axis=-1) * jnp.square(theirs).sum(axis=-1)
    counted = jnp.square(theirs).sum(axis=-1) > 0.0
    cosine = (mine * theirs).sum(axis=-1) * jax.lax.rsqrt(jnp.maximum(sizes, 1e-20))
    return jnp.where(counted, 1.0 - cosine, 0.0).sum(axis=-1), counted.astype(jnp.float32).sum(axis=-1)


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
