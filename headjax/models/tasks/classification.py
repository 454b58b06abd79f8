"""Classification and regression of sequences, classification of tokens, and the names of classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from headjax.core.class_names import IGNORED, tell_nothing
from headjax.core.errors import DataError, require
from headjax.core.fields import Rate, Size
from headjax.core.serialize import kind
from headjax.models.config import Batch, Loss, ModelConfig, Output
from headjax.models.inputs import batch_array
from headjax.models.tasks.task_output import Features, LinearLogits, TaskOutput, Vocabulary
from headjax.nn.embeddings import Range
from headjax.nn.projections import Linear, cross_entropy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classifier(TaskOutput):
    """Base of the outputs of one logit a class.

    Attributes:
        classes: number of classes.
        names: the classes by name, in the order of their numbers; empty where they have numbers only.
    """

    classes: Size
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.names) in (0, self.classes), "names", f"{len(self.names)} names for {self.classes} classes")

    def module(self, width: int, vocabulary: Vocabulary) -> Any:
        return LinearLogits(width, self.classes, self)

    def output_description(self) -> str:
        return f"{super().output_description()} of {self.classes} classes"

    def ranges(self, vocabulary: Vocabulary) -> dict[str, Range]:
        return {"labels": Range(self.classes, "classes", ignored=IGNORED)}


@kind("classification")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(Classifier):
    """dropout(pooled) W + b: one of `classes` for every sequence.

    `labels [batch]` are integers, or float `[batch, classes]` shares of every class (mixed images).

    Attributes:
        dropout: rate on the pooled vector.
        label_smoothing: share of the target spread evenly over the classes.
        max_seq_length: greatest number of tokens of an example; None is the model's.
    """

    needs_pooler: ClassVar[bool] = True

    dropout: Rate = 0.1
    label_smoothing: Rate = 0.0
    max_seq_length: Size | None = None

    def loss(self, output: Output, batch: Batch) -> Loss:
        return Loss(*class_losses(output.require_logits(), batch, self.label_smoothing))


@kind("regression")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression(TaskOutput):
    """phi(dropout(pooled) W + b): numbers for every sequence (STS-B), trained by their squared error.

    `labels` are numbers `[batch]`, or `[batch, outputs]`; a `nan` carries no loss. `logits` are the numbers
    `[batch, outputs]`, as a `CrossEncoder` of sentence-transformers returns them.

    Attributes:
        outputs: how many numbers.
        dropout: rate on the pooled vector.
        activation: phi, None for the identity; the numbers of `sigmoid` are between 0 and 1.
        max_seq_length: greatest number of tokens of an example; None is the model's.
    """

    needs_pooler: ClassVar[bool] = True

    outputs: Size = 1
    dropout: Rate = 0.1
    activation: Literal["sigmoid"] | None = None
    max_seq_length: Size | None = None

    def module(self, width: int, vocabulary: Vocabulary) -> LinearLogits:
        return LinearLogits(width, self.outputs, self)

    def result(self, features: Features, logits: jax.Array) -> Output:
        return features.output(logits if self.activation is None else jax.nn.sigmoid(logits))

    def loss(self, output: Output, batch: Batch) -> Loss:
        labels = batch_array(batch, "labels").astype(jnp.float32)
        if labels.size != labels.shape[0] * self.outputs:
            raise DataError(f"labels: expected {self.outputs} numbers an example, got {list(labels.shape)}")
        labels = labels.reshape(-1, self.outputs)
        present = ~jnp.isnan(labels)
        squares = jnp.square(output.require_logits() - jnp.where(present, labels, 0.0))
        return Loss(jnp.where(present, squares, 0.0).sum(axis=1), present.astype(jnp.float32).sum(axis=1))

    def example_labels(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        return {"labels": jax.ShapeDtypeStruct((batch_size, self.outputs), jnp.float32)}


@kind("token_classification")
@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenClassification(Classifier):
    """dropout(h_t) W + b: one of `classes` for every token. `labels [batch, length]`, -100 where no loss is wanted.

    Attributes:
        dropout: rate on the hidden states.
    """

    needs_tokens: ClassVar[bool] = True

    dropout: Rate = 0.1

    def loss(self, output: Output, batch: Batch) -> Loss:
        losses, weight = cross_entropy(output.require_logits(), integer_labels(batch, 2))
        return Loss(losses.sum(axis=1), weight.sum(axis=1))


@kind("multi_label")
@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabel(Classifier):
    """sigmoid(dropout(pooled) W + b): for every class whether it holds, trained by the sum of binary cross-entropies.

    `labels [batch, classes]` are float, 1 for a class that holds and 0 for others; a row with a `nan` carries no loss.

    Attributes:
        dropout: rate on the pooled vector.
        max_seq_length: greatest number of tokens of an example; None is the model's.
    """

    needs_pooler: ClassVar[bool] = True

    dropout: Rate = 0.1
    max_seq_length: Size | None = None

    def loss(self, output: Output, batch: Batch) -> Loss:
        labels, logits = batch_array(batch, "labels").astype(jnp.float32), output.require_logits()
        if labels.shape != logits.shape:
            raise DataError(f"labels: expected [batch, {self.classes}], got {list(labels.shape)}")
        present = ~jnp.isnan(labels).any(axis=1)
        losses = optax.sigmoid_binary_cross_entropy(logits, jnp.nan_to_num(labels))
        return Loss(jnp.where(present, losses.sum(axis=1), 0.0), present.astype(jnp.float32))

    def ranges(self, vocabulary: Vocabulary) -> dict[str, Range]:
        return {}

    def example_labels(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        return {"labels": jax.ShapeDtypeStruct((batch_size, self.classes), jnp.float32)}


def class_losses(logits: jax.Array, batch: Batch, smoothing: float) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy in nats `[batch]` of the batch's labels, and which count (1.0 or 0.0)."""
    labels = batch_array(batch, "labels")
    if labels.shape != logits.shape or not jnp.issubdtype(labels.dtype, jnp.floating):
        return cross_entropy(logits, integer_labels(batch, 1), smoothing)
    present = ~jnp.isnan(labels).any(axis=1)
    smooth = (1.0 - smoothing) * labels + smoothing / logits.shape[-1]
    losses = optax.softmax_cross_entropy(logits, jnp.where(present[:, None], smooth, 0.0))
    return losses, present.astype(jnp.float32)


def integer_labels(batch: Batch, ndim: int) -> jax.Array:
    """Return the batch's labels."""
    labels = batch_array(batch, "labels")
    if labels.ndim != ndim or not jnp.issubdtype(labels.dtype, jnp.integer):
        axes = "[batch]" if ndim == 1 else "[batch, length]"
        raise DataError(f"labels: expected integers {axes}, got {labels.dtype} {list(labels.shape)}")
    return labels


@kind("distilled_classification")
@dataclasses.dataclass(frozen=True, kw_only=True)
class DistilledClassification(Classifier):
    """(h_0 W + b + h_1 V + c) / 2: the mean of two classifiers (Touvron et al. 2021, section 4).

    The first reads the class token and learns `labels`, as `Classification` has them; the second reads the distillation
    token and learns `teacher_labels [batch]`, a teacher's answers; without those both learn the labels. Each carries
    half the loss. Their logits come as `extra_logits["cls_logits"]` and `["distillation_logits"]`.

    Attributes:
        label_smoothing: share of the label's target spread evenly over the classes.
    """

    labels = ("labels", "teacher_labels")

    label_smoothing: Rate = 0.0

    def module(self, width: int, vocabulary: Vocabulary) -> DistilledLogits:
        return DistilledLogits(self, width)

    def loss(self, output: Output, batch: Batch) -> Loss:
        learned, weight = class_losses(output.require_logits("cls_logits"), batch, self.label_smoothing)
        taught = {"labels": batch.get("teacher_labels", batch_array(batch, "labels"))}
        distilled, _ = class_losses(output.require_logits("distillation_logits"), taught, 0.0)
        return Loss((learned + weight * distilled) / 2.0, weight)

    def ranges(self, vocabulary: Vocabulary) -> dict[str, Range]:
        labels = super().ranges(vocabulary)
        return labels | {"teacher_labels": labels["labels"]}


class DistilledLogits(nnx.Module):
    """The module of `DistilledClassification`: the maps `class` and `distillation`, one a token."""

    def __init__(self, config: DistilledClassification, width: int) -> None:
        self.config = config
        setattr(self, "class", Linear(width, config.classes))  # a keyword, so that no attribute can be written so
        self.distillation = Linear(width, config.classes)

    def __call__(self, features: Features, key: jax.Array | None) -> Output:
        first = getattr(self, "class").logits(features.hidden[:, 0])  # [batch, classes]
        second = self.distillation.logits(features.hidden[:, 1])  # [batch, classes]
        both = {"cls_logits": first, "distillation_logits": second}
        return features.output((first + second) / 2.0, extra_logits=both)


def class_names(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of a classifier's classes in the order of their numbers; empty where it has none."""
    task = getattr(config, "task", None)
    return task.names if isinstance(task, Classifier) else ()


def with_class_names(config: Any, names: Sequence[str]) -> Any:
    """Return the config of a classifier without class names with these, if they fit and say more than the numbers."""
    task: TaskOutput | None = getattr(config, "task", None)
    if not isinstance(task, Classifier) or task.names or len(names) != task.classes or tell_nothing(names):
        return config
    return dataclasses.replace(config, task=dataclasses.replace(task, names=tuple(names)))
