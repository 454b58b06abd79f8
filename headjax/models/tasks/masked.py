"""Masked language modelling, alone and with next-sentence prediction."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from headjax.attention.projections import into_heads
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensor, Tensors, Zeros
from headjax.models.base import Batch, Loss, Output
from headjax.models.feed_forward import ACTIVATIONS, ActivationName
from headjax.models.inputs import abstract_integers, batch_array
from headjax.models.linear import linear, linear_tensors
from headjax.models.norms import LayerNorm, Norm
from headjax.models.outputs import IGNORED, Tied, cross_entropy
from headjax.models.ranges import Range
from headjax.models.tasks.base import Features, Logits, TaskOutput, Vocabulary


@kind("masked_language_model")
@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLanguageModel(TaskOutput):
    """norm(phi(h W + b)) E^T + c, with E the token embeddings (Devlin et al. 2019).

    W maps to the size of the token embeddings, which ALBERT makes smaller than the width. `labels [batch, length]` are
    token ids, -100 where no loss is wanted.

    Attributes:
        activation: phi.
        norm: the normalisation.
    """

    needs_tokens: ClassVar[bool] = True

    activation: ActivationName = "gelu"
    norm: Norm = LayerNorm(1e-12)

    def tensors(self, width: int, vocabulary: Vocabulary) -> Tensors:
        size = vocabulary.size
        return {
            "transform": Tensor((width, size), ("embed", None)),
            "transform_bias": Tensor((size,), (None,), Zeros(), decay=False),
            "norm": self.norm.tensors(size),
            **Tied(bias=True).tensors(width, vocabulary.tokens),
        }

    def __call__(self, params: Params, features: Features, key: jax.Array | None) -> Logits:
        inner = ACTIVATIONS[self.activation](into_heads(features.hidden, params["transform"], params["transform_bias"]))
        return Logits(Tied(bias=True)(params, self.norm(params["norm"], inner), features.require_embedding()))

    def loss(self, output: Output, batch: Batch) -> Loss:
        losses, counted = cross_entropy(output.require_logits(), batch_array(batch, "labels"))
        return Loss(losses.sum(axis=1), counted.sum(axis=1))

    def ranges(self, vocabulary: Vocabulary) -> dict[str, Range]:
        return {"labels": Range(vocabulary.tokens, "tokens", ignored=IGNORED)}

    def flops(self, width: int, vocabulary: Vocabulary, length: int) -> int:
        return 2 * length * vocabulary.size * (width + vocabulary.tokens)

    def example_labels(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        return abstract_integers((batch_size, length), "labels")


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

    def tensors(self, width: int, vocabulary: Vocabulary) -> Tensors:
        return {"masked": self.masked.tensors(width, vocabulary), "next_sentence": linear_tensors(width, 2)}

    def __call__(self, params: Params, features: Features, key: jax.Array | None) -> Logits:
        tokens = self.masked(params["masked"], features, key)
        return tokens._replace(
            extra={"seq_relationship_logits": linear(params["next_sentence"], features.require_pooled())}
        )

    def loss(self, output: Output, batch: Batch) -> Loss:
        """The mean over the batch is the sum of both tasks' means.

        To that end every example's next-sentence loss is multiplied by the batch's masked tokens per example.
        """
        tokens = self.masked.loss(output, batch)
        logits = output.require_logits("seq_relationship_logits")
        losses, counted = cross_entropy(logits, batch_array(batch, "next_sentence_label"))
        rate = jnp.maximum(tokens.weight.sum(), 1.0) / jnp.maximum(counted.sum(), 1.0)
        return Loss(tokens.total + rate * losses, tokens.weight)

    def ranges(self, vocabulary: Vocabulary) -> dict[str, Range]:
        follows = Range(2, "answers", ignored=IGNORED)
        return self.masked.ranges(vocabulary) | {"next_sentence_label": follows}

    def flops(self, width: int, vocabulary: Vocabulary, length: int) -> int:
        return self.masked.flops(width, vocabulary, length) + 2 * width * 2

    def example_labels(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        sentences = abstract_integers((batch_size,), "next_sentence_label")
        return self.masked.example_labels(batch_size, length) | sentences
