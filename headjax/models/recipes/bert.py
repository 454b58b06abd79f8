"""The recipes of BERT and its relatives."""

from __future__ import annotations

import dataclasses

from headjax.attention.base import Attention
from headjax.core.errors import require_positive
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
    vocab_size: int = 30522
    max_length: int = 512
    segments: int = 2
    width: int = 768
    num_layers: int = 12
    residual: Residual = PostNorm(LayerNorm(1e-12))
    pooler: Pooler | None = Pooler()
    task: TaskOutput = NoTask()
    dropout: float = 0.1
    attention_dropout: float = 0.1
    attention_by_layer: tuple[Attention, ...] = ()
    initializer: Initializer = TruncatedNormal(0.02)

    def __post_init__(self) -> None:
        require_positive(self, "vocab_size", "max_length", "width", "num_layers")

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

    segments: int = 0
    num_layers: int = 6
    pooler: Pooler | None = None


@kind("roberta")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Roberta(Bert):
    """RoBERTa (Liu et al. 2019): BERT with one segment, and positions that skip padding."""

    vocab_size: int = 50265
    segments: int = 1
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

    vocab_size: int = 30000
    embedding_size: int = 128
    dropout: float = 0.0
    attention_dropout: float = 0.0

    def embeddings(self) -> Embeddings:
        return dataclasses.replace(super().embeddings(), size=self.embedding_size)

    def stack(self) -> Stack:
        stack = super().stack()
        return SharedStack(layers=stack.layers, final_norm=stack.final_norm)
