"""The recipes of BERT and its relatives."""

from __future__ import annotations

import dataclasses

from headjax.attention.formulation import Attention
from headjax.core.fields import Count, Rate, Size
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, TruncatedNormal
from headjax.models.embeddings import Embeddings, Learned, LearnedPresent, Positions
from headjax.models.encoder import EncoderModel
from headjax.models.feed_forward import FeedForward
from headjax.models.layer import Layer
from headjax.models.norms import LayerNorm
from headjax.models.pooler import Pooler
from headjax.models.recipes.base import Recipe, equal_stack
from headjax.models.residual import PostNorm, Residual
from headjax.models.stack import SharedStack, Stack
from headjax.models.tasks import NoTask, TaskOutput


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

    attention: Attention
    feed_forward: FeedForward
    vocab_size: Size = 30522
    max_length: Size = 512
    segments: Count = 2
    width: Size = 768
    num_layers: Size = 12
    residual: Residual = PostNorm(LayerNorm(1e-12))
    pooler: Pooler | None = Pooler()
    task: TaskOutput = NoTask()
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1
    attention_by_layer: tuple[Attention, ...] = ()
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
        """How positions enter."""
        return Learned(self.max_length)

    def embeddings(self) -> Embeddings:
        """What turns tokens into vectors."""
        return Embeddings(
            vocab_size=self.vocab_size,
            positions=self.positions(),
            segments=self.segments,
            norm=self.residual.norm,
            dropout=self.dropout,
        )

    def stack(self) -> Stack:
        """The layers."""
        layer = Layer(
            attention=self.attention,
            feed_forward=self.feed_forward,
            residual=self.residual,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
        )
        return equal_stack(layer, self.num_layers, self.attention_by_layer)


@kind("distilbert")
@dataclasses.dataclass(frozen=True, kw_only=True)
class DistilBert(Bert):
    """DistilBERT (Sanh et al. 2019): BERT without segments and pooler, half as deep.

    For classification it pools with ReLU: `pooler=Pooler(activation="relu")`.
    """

    segments: Count = 0
    num_layers: Size = 6
    pooler: Pooler | None = None


@kind("roberta")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Roberta(Bert):
    """RoBERTa (Liu et al. 2019): BERT with one segment, and positions that skip padding."""

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
