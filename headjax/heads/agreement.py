"""Agreement of two models on examples without labels: Kullback-Leibler divergence, or cosine of embeddings."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.progress import Update
from headjax.core.timing import finished
from headjax.heads.statistics import sum_over
from headjax.models.config import Batch, ModelConfig, Output, declared_model
from headjax.models.inputs import counted_at, device_batch
from headjax.models.model import Model
from headjax.models.tasks import NoTask, Regression, SentenceSimilarity, Span
from headjax.models.tasks.similarity import sentences, unit
from headjax.nn.state import Compute, ForwardOptions

AgreementKind = Literal["kl", "cosine", "squared_difference"]
"""Measures of agreement: KL(first || second) of predictions in nats, cosine of embeddings, difference of numbers."""


class Agreement(NamedTuple):
    """Agreement of two models.

    Attributes:
        kind: Measure of agreement.
        value: Mean over the predictions.
    """

    kind: AgreementKind
    value: float

    @property
    def distance(self) -> float:
        """Distance of the models: 0 if they agree."""
        return 1.0 - self.value if self.kind == "cosine" else self.value


class Predictions(NamedTuple):
    """Predictions of one batch.

    Attributes:
        values: `[..., n]`, logits, embeddings or numbers.
        weight: `[...]`, 1.0 at predictions, 0.0 at padding.
    """

    values: jax.Array
    weight: jax.Array


def agreement_kind(config: ModelConfig) -> AgreementKind:
    """Return the measure of agreement for a model: cosines of embeddings where it has no task but to embed."""
    task = getattr(config, "task", None)
    if isinstance(task, NoTask | SentenceSimilarity):
        return "cosine"
    return "squared_difference" if isinstance(task, Regression) else "kl"


def agreement(first: Model, second: Model, batches: Iterable[Batch], *, compute: Compute = Compute()) -> Agreement:
    """Return how far two models of one task agree, as a mean over the predictions on these examples.

    Models with logits are compared by KL(first || second) of every prediction, in nats; regressions by the squared
    difference; and models that embed sentences or texts by the cosine between both models' embeddings.
    """
    return agreements(first, [second], batches, compute=compute)[0]


def agreements(
    first: Model,
    others: Sequence[Model],
    batches: Iterable[Batch],
    *,
    compute: Compute = Compute(),
    progress: Update | None = None,
) -> list[Agreement]:
    """Return how far each of several models agrees with one, whose predictions are computed once; see `agreement`."""
    kind = agreement_kind(first.config)

    def compared(batch: Batch) -> list[Any]:
        arrays = device_batch(first.config, batch)
        predictions = predict(first, arrays, compute)
        return [compare(kind, predictions, predict(model, arrays, compute)) for model in others]

    parts = list(finished(map(compared, batches), progress))
    return [mean_agreement(kind, [part[number] for part in parts]) for number in range(len(others))]


def rooted(kind: AgreementKind, predictions: Predictions) -> jax.Array:
    """Return r `[..., n]` of which |r - r'|^2 / 2 is the measure between predictions that are near each other.

    That is 1 - cosine of embeddings, and the squared difference, at any distance. KL(p || p') nears twice the squared
    distance of sqrt(p) and sqrt(p').
    """
    values = predictions.values
    if kind == "cosine":
        root = unit(values)
    elif kind == "squared_difference":
        root = values * jnp.sqrt(2.0 / values.shape[-1])
    else:
        root = 2.0 * jnp.exp(0.5 * jax.nn.log_softmax(values, axis=-1))
    return jnp.where(predictions.weight[..., None] > 0, root, 0.0)


def mean_agreement(kind: AgreementKind, parts: Iterable[Any]) -> Agreement:
    """Return the mean of sums that `compare` has returned."""
    total, weight = sum_over(parts)
    return Agreement(kind, float(total / max(weight, 1.0)))


@functools.partial(jax.jit, static_argnames="compute")
def predict(model: Model, batch: Any, compute: Compute = Compute()) -> Predictions:
    """Return a model's predictions for a batch."""
    output = model.forward(batch, ForwardOptions(compute=compute))
    return predictions_of(model.config, output, batch)


def predictions_of(config: ModelConfig, output: Output, batch: Any) -> Predictions:
    """Return the predictions that a model's output holds."""
    task = getattr(config, "task", None)
    if isinstance(task, SentenceSimilarity):
        return Predictions(output.require_embeddings(), sentences(batch, output.hidden).max(axis=2))
    present = counted_positions(config, batch, output)
    if isinstance(task, NoTask):
        return Predictions(jnp.einsum("bt,btd->bd", present, output.hidden), present.max(axis=1))
    logits = output.require_logits().astype(jnp.float32)
    if isinstance(task, Regression):
        return Predictions(logits, present.max(axis=1))
    if isinstance(task, Span):
        logits = jnp.where(present[:, :, None] > 0, logits, -1e9)
        return Predictions(jnp.swapaxes(logits, 1, 2), jnp.stack([present.max(axis=1)] * 2, axis=1))
    return Predictions(logits, present.max(axis=1) if logits.ndim == 2 else present)


def divergence(first: jax.Array, second: jax.Array, temperature: float | jax.Array = 1.0) -> jax.Array:
    """Return KL(softmax(first / T) || softmax(second / T)) of logits `[..., choices]`, in nats, `[...]`."""
    log_p, log_q = (jax.nn.log_softmax(logits / temperature, axis=-1) for logits in (first, second))
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


@functools.partial(jax.jit, static_argnames="kind")
def compare(kind: AgreementKind, first: Predictions, second: Predictions) -> tuple[jax.Array, jax.Array]:
    """Return the sum of the measure over the predictions of one batch, and their number."""
    x, y = first.values, second.values
    if kind == "cosine":
        lengths = jnp.linalg.norm(x, axis=-1) * jnp.linalg.norm(y, axis=-1)
        each = (x * y).sum(axis=-1) / jnp.maximum(lengths, 1e-12)
    elif kind == "squared_difference":
        each = jnp.square(x - y).mean(axis=-1)
    else:
        each = divergence(x, y)
    return jnp.where(first.weight > 0, each, 0.0).sum(), first.weight.sum()


def count_examples(config: ModelConfig, batch: Batch) -> int:
    """Return the number of examples of a batch that are no padding."""
    present = batch.get("attention_mask") if "input_ids" in batch else declared_model(config).valid_tokens(batch)
    return len(next(iter(batch.values()))) if present is None else int(np.asarray(present).any(axis=1).sum())


def counted_positions(config: ModelConfig, batch: Batch, output: Output) -> jax.Array:
    """Return `[batch, length]`, 1.0 at the positions of a model's output that hold tokens, 0.0 at padding."""
    return counted_at(declared_model(config).valid_tokens(batch), output.hidden.shape[:2])
