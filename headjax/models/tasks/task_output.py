"""The base of the task outputs of encoders: hidden states to logits, and logits and labels to losses."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
from flax import nnx

from headjax.core.errors import DataError
from headjax.core.modules import Spec
from headjax.core.serialize import kind, kind_of
from headjax.models.config import Batch, Loss, Output
from headjax.models.inputs import abstract_integers
from headjax.nn.embeddings import Range
from headjax.nn.operands import Dropout
from headjax.nn.projections import Linear


class Vocabulary(NamedTuple):
    """The tokens that a model's inputs are made of, by which some outputs are sized.

    Attributes:
        tokens: Their number; 0 in models that read none.
        size: Size of their embeddings.
    """

    tokens: int
    size: int


class Features(NamedTuple):
    """Inputs of a task output.

    Attributes:
        hidden: `[batch, length, width]`, output of the stack.
        pooled: `[batch, width]`; None in models that do not pool, which have no task that reads it.
        embedding: `[vocabulary, size]`, the token embeddings; None in models that read no tokens.
    """

    hidden: jax.Array
    pooled: Any
    embedding: Any
    batch: Batch

    def output(self, logits: jax.Array | None, **more: Any) -> Output:
        """Return the model's output with these results of the task."""
        return Output(hidden=self.hidden, logits=logits, pooled=self.pooled, **more)


class TaskOutput(Spec, abc.ABC):
    """Base of the task outputs."""

    needs_pooler: ClassVar[bool] = False
    """Whether it reads `Features.pooled`."""

    needs_tokens: ClassVar[bool] = False
    """Whether its labels or logits are about single tokens of a text."""

    labels: ClassVar[tuple[str, ...]] = ("labels",)
    """Names of the integers that a loss reads, one an example or one a token."""

    @abc.abstractmethod
    def module(self, width: int, vocabulary: Vocabulary) -> Any:
        """Return the module: (`Features`, the key that draws dropout, None outside training) to `Output`."""

    @abc.abstractmethod
    def loss(self, output: Output, batch: Batch) -> Loss:
        """Return the losses of the batch's labels."""

    def example_labels(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return shapes and types of the arrays of a training batch that the loss reads."""
        shape = (batch_size, length) if self.needs_tokens else (batch_size,)
        return abstract_integers(shape, *self.labels)

    def output_description(self) -> str:
        """Return the task in words, for the end of a line about a model."""
        return f", task {kind_of(self)}"

    def ranges(self, vocabulary: Vocabulary) -> dict[str, Range]:
        """Return the range of each array of labels, by name; -100 leaves a label out."""
        return {}

    def for_evaluation(self) -> TaskOutput:
        """Return the output with the loss that evaluation reports, without training's label smoothing."""
        task: Any = self
        return dataclasses.replace(task, label_smoothing=0.0) if hasattr(self, "label_smoothing") else self


@kind("no_task")
@dataclasses.dataclass(frozen=True)
class NoTask(TaskOutput):
    """Hidden states are the output; there is nothing to train on."""

    labels = ()

    def module(self, width: int, vocabulary: Vocabulary) -> NoLogits:
        return NoLogits(self)

    def loss(self, output: Output, batch: Batch) -> Loss:
        raise DataError("labels: the model has no task output, so there is no loss")


class LinearLogits(Linear):
    """dropout(x) W + b, x the pooled vector or the hidden states: the module of several outputs."""

    def __call__(self, features: Features, key: jax.Array | None) -> Output:
        x = features.pooled if self.config.needs_pooler else features.hidden  # [batch, ..., width]
        return features.output(self.logits(Dropout(self.config.dropout, key)(x)))


class NoLogits(nnx.Module):
    """The module of outputs without logits; it has no weights."""

    def __init__(self, config: TaskOutput) -> None:
        self.config = config

    def __call__(self, features: Features, key: jax.Array | None) -> Output:
        return features.output(None)
