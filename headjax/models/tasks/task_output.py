"""Task outputs, from hidden states to logits and losses: their base, masked language modelling, spans of answers."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core.class_names import IGNORED
from headjax.core.errors import DataError
from headjax.core.fields import Checked, Rate
from headjax.core.serialize import kind, kind_of
from headjax.core.tensors import bias_weight, weight
from headjax.models.config import Batch, Loss, Output
from headjax.models.inputs import abstract_integers, batch_array
from headjax.nn.embeddings import Range
from headjax.nn.norms import LayerNorm, Norm
from headjax.nn.operands import Dropout
from headjax.nn.projections import ACTIVATIONS, ActivationName, Linear, cross_entropy, into_heads


class Vocabulary(NamedTuple):
    """The tokens that a model's inputs are made of, by which some outputs are sized."""

    tokens: int  # their number; 0 in models that read none
    size: int  # of their embeddings


class Features(NamedTuple):
    """Inputs of a task output."""

    hidden: jax.Array  # [batch, length, width], output of the stack
    pooled: Any  # [batch, width]; None in models that do not pool, which have no task that reads it
    embedding: Any  # [vocabulary, size], the token embeddings; None in models that read no tokens
    batch: Batch

    def output(self, logits: jax.Array | None, **more: Any) -> Output:
        """Return the model's output with these results of the task."""
        return Output(hidden=self.hidden, logits=logits, pooled=self.pooled, **more)


class TaskOutput(Checked, abc.ABC):
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

    def result(self, features: Features, logits: jax.Array) -> Output:
        """Return the model's output with the logits of a `LinearLogits`."""
        return features.output(logits)

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
        output: Output = self.config.result(features, self.logits(Dropout(self.config.dropout, key)(x)))
        return output


class NoLogits(nnx.Module):
    """The module of outputs without logits; it has no weights."""

    def __init__(self, config: TaskOutput) -> None:
        self.config = config

    def __call__(self, features: Features, key: jax.Array | None) -> Output:
        return features.output(None)


@kind("masked_language_model")
@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLanguageModel(TaskOutput):
    """norm(phi(h W + b)) E^T + c, with E the token embeddings (Devlin et al. 2019), or weights of its own.

    W maps to the size of the token embeddings, which ALBERT makes smaller than the width. `labels [batch, length]` are
    token ids, -100 where no loss is wanted.

    Attributes:
        activation: phi.
        norm: the normalisation.
        transform_bias, bias: whether there are b and c.
        tied: whether E are the token embeddings.
    """

    needs_tokens: ClassVar[bool] = True

    activation: ActivationName = "gelu"
    norm: Norm = LayerNorm(1e-12)
    transform_bias: bool = True
    bias: bool = True
    tied: bool = True

    def module(self, width: int, vocabulary: Vocabulary) -> MaskedTokenLogits:
        return MaskedTokenLogits(self, width, vocabulary)

    def loss(self, output: Output, batch: Batch) -> Loss:
        losses, weight = cross_entropy(output.require_logits(), batch_array(batch, "labels"))
        return Loss(losses.sum(axis=1), weight.sum(axis=1))

    def ranges(self, vocabulary: Vocabulary) -> dict[str, Range]:
        return {"labels": Range(vocabulary.tokens, "tokens", ignored=IGNORED)}


class MaskedTokenLogits(nnx.Module):
    """The module of `MaskedLanguageModel`."""

    def __init__(self, config: MaskedLanguageModel, width: int, vocabulary: Vocabulary) -> None:
        self.config = config
        self.transform = weight((width, vocabulary.size), ("embed", None))
        self.transform_bias = bias_weight(config.transform_bias, (vocabulary.size,), (None,))
        self.norm = config.norm.module(vocabulary.size)
        self.kernel = None if config.tied else weight((vocabulary.size, vocabulary.tokens), ("embed", "vocabulary"))
        self.bias = bias_weight(config.bias, (vocabulary.tokens,), ("vocabulary",))

    def __call__(self, features: Features, key: jax.Array | None) -> Output:
        phi = ACTIVATIONS[self.config.activation]
        kernel = features.embedding.T if self.kernel is None else self.kernel[...]  # [size, vocabulary]
        inner = phi(into_heads(features.hidden, self.transform, self.transform_bias))  # [batch, length, size]
        return features.output(into_heads(self.norm(inner), kernel, self.bias).astype(jnp.float32))


@kind("pretraining")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretraining(TaskOutput):
    """BERT's two tasks: masked tokens, and whether the second segment follows the first (pooled W + b).

    `labels` are those of the masked language model, `next_sentence_label [batch]` is 0 where the second segment
    follows, 1 where it does not. The two logits come as `extra_logits["seq_relationship_logits"]`.

    Attributes:
        masked: the masked language model.
    """

    needs_pooler: ClassVar[bool] = True
    needs_tokens: ClassVar[bool] = True

    masked: MaskedLanguageModel = MaskedLanguageModel()

    def module(self, width: int, vocabulary: Vocabulary) -> PretrainingLogits:
        return PretrainingLogits(self, width, vocabulary)

    def loss(self, output: Output, batch: Batch) -> Loss:
        """The mean over the batch is the sum of both tasks' means.

        To that end every example's next-sentence loss is multiplied by the batch's masked tokens per example.
        """
        tokens = self.masked.loss(output, batch)
        logits = output.require_logits("seq_relationship_logits")
        losses, weight = cross_entropy(logits, batch_array(batch, "next_sentence_label"))
        rate = jnp.maximum(tokens.weight.sum(), 1.0) / jnp.maximum(weight.sum(), 1.0)
        return Loss(tokens.total + rate * losses, tokens.weight)

    def ranges(self, vocabulary: Vocabulary) -> dict[str, Range]:
        follows = Range(2, "answers", ignored=IGNORED)
        return self.masked.ranges(vocabulary) | {"next_sentence_label": follows}

    def example_labels(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        sentences = abstract_integers((batch_size,), "next_sentence_label")
        return self.masked.example_labels(batch_size, length) | sentences


class PretrainingLogits(nnx.Module):
    """The module of `Pretraining`."""

    def __init__(self, config: Pretraining, width: int, vocabulary: Vocabulary) -> None:
        self.config = config
        self.masked = config.masked.module(width, vocabulary)
        self.next_sentence = Linear(width, 2)

    def __call__(self, features: Features, key: jax.Array | None) -> Output:
        follows = self.next_sentence.logits(features.pooled)  # [batch, 2]
        return self.masked(features, key)._replace(extra_logits={"seq_relationship_logits": follows})


@kind("span")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Span(TaskOutput):
    """p(start = t) = softmax_t(h_t w_s + b_s), p(end = t) = softmax_t(h_t w_e + b_e) (Devlin et al. 2019, section 4.2).

    `start_positions` and `end_positions [batch]` are the labels; one outside the sequence carries no loss. `logits` are
    `[batch, length, 2]`, start before end, and also come as `extra_logits["start_logits"]` and `["end_logits"]`.

    Attributes:
        dropout: rate on the hidden states (DistilBERT has one here, BERT none).
    """

    needs_tokens: ClassVar[bool] = True

    dropout: Rate = 0.0

    def module(self, width: int, vocabulary: Vocabulary) -> LinearLogits:
        return LinearLogits(width, 2, self)

    def result(self, features: Features, logits: jax.Array) -> Output:
        ends = {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
        return features.output(logits, extra_logits=ends)

    def loss(self, output: Output, batch: Batch) -> Loss:
        """Both ends are targets, so that the mean is the mean of the two cross-entropies."""
        positions = jnp.stack([batch_array(batch, f"{end}_positions") for end in ("start", "end")], axis=1)
        logits = output.require_logits()
        inside = (positions >= 0) & (positions < logits.shape[1])
        losses, weight = cross_entropy(jnp.swapaxes(logits, 1, 2), jnp.where(inside, positions, IGNORED))
        return Loss(losses.sum(axis=1), weight.sum(axis=1))

    def example_labels(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        return abstract_integers((batch_size,), "start_positions", "end_positions")
