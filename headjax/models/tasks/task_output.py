"""The base of the task outputs of encoders: hidden states to logits, and logits and labels to losses."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
from flax import nnx

from headjax.core.errors import ConfigError, DataError
from headjax.core.modules import Spec
from headjax.core.ranges import Range
from headjax.core.serialize import kind, kind_of
from headjax.models.config import Batch, Loss, Output
from headjax.nn.feed_forward import fold
from headjax.nn.operands import Dropout
from headjax.nn.outputs import Linear
from headjax.nn.passes import Pass
from headjax.nn.projections import Weight


class Vocabulary(NamedTuple):
    """The tokens that a model's inputs are made of, by which some outputs are sized.

    Attributes:
        tokens: their number; 0 in models that read none.
        size: size of their embeddings.
    """

    tokens: int
    size: int


class Features(NamedTuple):
    """Inputs of a task output.

    Attributes:
        hidden: `[batch, length, width]`, output of the stack.
        pooled: `[batch, width]`, or None where the model does not pool.
        embedding: `[vocabulary, size]`, the token embeddings; None in models that read no tokens.
        batch: what the model reads.
    """

    hidden: jax.Array
    pooled: jax.Array | None
    embedding: Weight | None
    batch: Batch

    def require_pooled(self) -> jax.Array:
        """Return the pooled vector; models are built with a pooler where a task reads it."""
        if self.pooled is None:
            raise ConfigError("pooler: the output reads the pooled vector, so the model needs a pooler")
        return self.pooled

    def require_embedding(self) -> Weight:
        """Return the token embeddings; a task that reads them is only built into models that have them."""
        if self.embedding is None:
            raise ConfigError("output: it reads token embeddings, and the model has none")
        return self.embedding


class Logits(NamedTuple):
    """A task's results in float32: logits, others by Hugging Face's names, and sentence vectors."""

    logits: jax.Array | None
    extra: dict[str, jax.Array] | None = None
    embeddings: jax.Array | None = None


class TaskOutput(Spec, abc.ABC):
    """Base of the task outputs."""

    needs_pooler: ClassVar[bool] = False
    """Whether it reads `Features.pooled`."""

    needs_tokens: ClassVar[bool] = False
    """Whether its labels or logits are about single tokens of a text."""

    @abc.abstractmethod
    def module(self, width: int, vocabulary: Vocabulary) -> Any:
        """Return the module: (`Features`, the key that draws dropout, None outside training) to `Logits`."""

    @abc.abstractmethod
    def loss(self, output: Output, batch: Batch) -> Loss:
        """Return the losses of the batch's labels."""

    @abc.abstractmethod
    def flops(self, width: int, vocabulary: Vocabulary, length: int) -> int:
        """Count the floating-point operations for one example of this length."""

    @abc.abstractmethod
    def example_labels(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return shapes and types of the arrays of a training batch that the loss reads."""

    def answers(self) -> str:
        """Return the task as it goes on in a line about a model."""
        return f", task {kind_of(self)}"

    def ranges(self, vocabulary: Vocabulary) -> dict[str, Range]:
        """Return the range of each array of labels, by name; -100 leaves a label out."""
        return {}

    def for_evaluation(self) -> TaskOutput:
        """Return the output with the loss that evaluation reports, without training's label smoothing."""
        return self


@kind("no_task")
@dataclasses.dataclass(frozen=True)
class NoTask(TaskOutput):
    """Hidden states are the output; there is nothing to train on."""

    def module(self, width: int, vocabulary: Vocabulary) -> NoLogits:
        return NoLogits(self)

    def loss(self, output: Output, batch: Batch) -> Loss:
        raise DataError("labels: the model has no task output, so there is no loss")

    def flops(self, width: int, vocabulary: Vocabulary, length: int) -> int:
        return 0

    def example_labels(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        return {}


class LinearLogits(Linear):
    """dropout(x) W + b, x the pooled vector or the hidden states: the module of several outputs."""

    def __call__(self, features: Features, key: jax.Array | None) -> Logits:
        x = features.require_pooled() if self.config.needs_pooler else features.hidden  # [batch, ..., width]
        return Logits(self.logits(Dropout(self.config.dropout, key)(x)))


class NoLogits(nnx.Module):
    """The module of outputs without logits; it has no weights."""

    def __init__(self, config: TaskOutput) -> None:
        self.config = config

    def __call__(self, features: Features, key: jax.Array | None) -> Logits:
        return Logits(None)


def task_answer(task: Any, features: Features, call: Pass) -> Output:
    """Return the output of an encoder with a task."""
    logits = task(features, fold(call.key, 3))
    return Output(
        hidden=features.hidden,
        logits=logits.logits,
        pooled=features.pooled,
        extra_logits=logits.extra,
        embeddings=logits.embeddings,
    )
