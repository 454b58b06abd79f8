"""The encoder, and the recipes of BERT, DistilBERT, RoBERTa and ALBERT."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from flax import nnx

from headjax.core.errors import require
from headjax.core.fields import Count, Listed, Rate, Size
from headjax.core.kind import Kind
from headjax.core.norms import LayerNorm
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, TruncatedNormal
from headjax.models.compute import StackCall
from headjax.models.config import Batch, Loss, ModelConfig, Options, Output
from headjax.models.embeddings import Embeddings, Learned, LearnedPresent, Positions
from headjax.models.inputs import abstract_integers, embedded, reading
from headjax.models.outputs import Pooler
from headjax.models.ranges import Range
from headjax.models.recipe import Recipe, equal_stack
from headjax.models.residuals import PostNorm, Residual
from headjax.models.shared_stack import SharedStack
from headjax.models.stack import Stack
from headjax.models.sublayers import FeedForward, fold
from headjax.models.tasks import Features, NoTask, TaskOutput, Vocabulary
from headjax.models.tasks.task_output import task_answer


@kind("encoder")
@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderModel(ModelConfig):
    """stack(embeddings(x)), pooled and turned into the task's logits.

    Batches hold `input_ids [batch, length]` and optionally `attention_mask` (0 at padding), `token_type_ids`,
    `position_ids` (counted from 0 at any offset), `segment_ids` of packed examples, and the task's labels.

        >>> from headjax.attention import Kind, MultiHeadAttention
        >>> from headjax.models import Bert
        >>> from headjax.models.sublayers import Dense
        >>> recipe = Bert(attention=Kind(MultiHeadAttention, num_heads=12, head_dim=64), feed_forward=Dense(3072))
        >>> headjax.summarize(recipe.build(), length=64).parameters  # as many as BERT-base
        109482240

    Attributes:
        embeddings: token embeddings, positions and segments.
        encoder: the layers, without cross-attention.
        pooler: makes `pooled` of the first token, or None.
        output: the task.
    """

    embeddings: Embeddings
    encoder: Stack
    pooler: Pooler | None = None
    output: TaskOutput = NoTask()

    def validate(self) -> None:
        require(
            not self.encoder.crossed, "encoder", "cross_attention needs an encoder to attend to; this is the encoder"
        )
        pooled = self.pooler is not None or not self.output.needs_pooler
        require(pooled, "pooler", "the output reads the pooled vector, so the model needs a pooler")

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens and the size of their embeddings."""
        return Vocabulary(self.embeddings.vocab_size, self.embeddings.token_size(self.width))

    def parts(self) -> dict[str, nnx.Module]:
        pooler = {} if self.pooler is None else {"pooler": self.pooler.module(self.width)}
        return {
            "embeddings": self.embeddings.module(self.width),
            "encoder": self.encoder.module(self.width, self.width),
            **pooler,
            "output": self.output.module(self.width, self.vocabulary),
        }

    def stacks(self) -> dict[str, Stack]:
        return {"encoder": self.encoder}

    def enter(self, model: Any, stack: str, batch: Batch, options: Options) -> jax.Array:
        return embedded(model.embeddings, batch, options, segments=batch.get("token_type_ids"))

    def call(self, stack: str, batch: Batch, options: Options, memory: jax.Array | None) -> StackCall:
        return reading(self.embeddings.positions, stack, batch, options)

    def finish(self, model: Any, hidden: jax.Array, batch: Batch, options: Options) -> Output:
        pooled = None if self.pooler is None else model.pooler(hidden, fold(options.key, 2))  # [batch, width]
        return task_answer(model.output, Features(hidden, pooled, model.embeddings.token), options)

    def loss(self, output: Output, batch: Batch) -> Loss:
        return self.output.loss(output, batch)

    def example_batch(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        names = ["input_ids", "attention_mask", *(["token_type_ids"] if self.embeddings.segments else [])]
        return abstract_integers((batch_size, length), *names) | self.output.example_labels(batch_size, length)

    def ranges(self) -> dict[str, Range]:
        return self.embeddings.ranges() | self.output.ranges(self.vocabulary)

    def for_evaluation(self) -> EncoderModel:
        return dataclasses.replace(self, output=self.output.for_evaluation())

    def flops(self, length: int) -> int:
        total = self.embeddings.flops(self.width, length) + self.encoder.flops(self.width, length)
        if self.pooler is not None:
            total += self.pooler.flops(self.width)
        return total + self.output.flops(self.width, self.vocabulary, length)


@kind("bert")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Bert(Recipe):
    """BERT (Devlin et al. 2019). The numbers that are not asked for are those of bert-base-uncased.

    Attributes:
        attention: formulation of every layer.
        feed_forward: feed-forward sub-layer of every layer.
        vocab_size: number of tokens.
        max_length: longest sequence, in tokens.
        segments: number of segment embeddings, 0 for none.
        width: size of the residual stream.
        num_layers: number of layers.
        residual: how sub-layers join the stream; its normalisation is that of the embeddings too.
        pooler: makes one vector of the first token's, or None.
        task: the task output.
        dropout: rate on embeddings and sub-layer outputs.
        attention_dropout: rate on attention probabilities.
        attention_by_layer: formulations that differ from layer to layer, instead of `attention` for all.
        initializer: of weights.
    """

    attention: Kind
    feed_forward: FeedForward
    vocab_size: Size = 30522
    max_length: Size = 512
    segments: Count = 2
    width: Size = 768
    num_layers: Listed = 12
    residual: Residual = PostNorm(LayerNorm(1e-12))
    pooler: Pooler | None = Pooler()
    task: TaskOutput = NoTask()
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1
    attention_by_layer: tuple[Kind, ...] = ()
    initializer: Initializer = TruncatedNormal(0.02)

    def build(self) -> EncoderModel:
        return EncoderModel(
            width=self.width,
            embeddings=self.embeddings(),
            encoder=self.stack(),
            pooler=self.pooler,
            output=self.task,
            initializer=self.initializer,
        )

    def positions(self) -> Positions:
        """Return the positions of the embeddings."""
        return Learned(self.max_length)

    def embeddings(self) -> Embeddings:
        """Return the embeddings."""
        return Embeddings(
            vocab_size=self.vocab_size,
            positions=self.positions(),
            segments=self.segments,
            norm=self.residual.norm,
            dropout=self.dropout,
        )

    def stack(self) -> Stack:
        """Return the layers."""
        return equal_stack(self)


@kind("distilbert")
@dataclasses.dataclass(frozen=True, kw_only=True)
class DistilBert(Bert):
    """DistilBERT (Sanh et al. 2019): BERT without segments and pooler, half as deep.

    For classification it pools with ReLU: `pooler=Pooler(activation="relu")`.
    """

    segments: Count = 0
    num_layers: Listed = 6
    pooler: Pooler | None = None


@kind("roberta")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Roberta(Bert):
    """RoBERTa (Liu et al. 2019): BERT with one segment, and positions that skip the padding token, which has id 1."""

    vocab_size: Size = 50265
    segments: Count = 1
    residual: Residual = PostNorm(LayerNorm(1e-5))
    pooler: Pooler | None = None

    def positions(self) -> Positions:
        return LearnedPresent(self.max_length)


@kind("albert")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Albert(Bert):
    """ALBERT (Lan et al. 2020): BERT whose layers are one layer, with smaller token embeddings and no dropout.

    Attributes:
        embedding_size: size of the token embeddings.
    """

    vocab_size: Size = 30000
    embedding_size: Size = 128
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0

    def embeddings(self) -> Embeddings:
        return dataclasses.replace(super().embeddings(), size=self.embedding_size)

    def stack(self) -> Stack:
        stack = super().stack()
        return SharedStack(layers=stack.layers, final_norm=stack.final_norm)
