"""The recipe of decoder language models."""

from __future__ import annotations

import dataclasses

from headjax.attention.formulation import Attention
from headjax.core.fields import Rate, Size
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, Normal
from headjax.models.decoder import DecoderModel
from headjax.models.embeddings import Embeddings, Learned, Positions
from headjax.models.feed_forward import FeedForward
from headjax.models.layer import Layer
from headjax.models.norms import Norm
from headjax.models.outputs import Tied, TokenLogits
from headjax.models.recipes.base import Recipe, equal_stack
from headjax.models.residual import PreNorm, Residual


@kind("language_model")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModel(Recipe):
    """A decoder language model of equal layers.

    Attributes:
        vocab_size: number of tokens.
        max_length: longest sequence, in tokens.
        width: size of the residual stream.
        num_layers: number of layers.
        attention: formulation of every layer.
        feed_forward: feed-forward sub-layer of every layer.
        residual: how sub-layers join the stream; `pre_norm` adds a final norm.
        positions: how positions enter; None is one learned vector each.
        embedding_norm: normalisation of the embeddings, or None; post-norm stacks need it to begin at variance one.
        output: how hidden states become logits.
        dropout: rate on embeddings and sub-layer outputs.
        attention_dropout: rate on attention probabilities.
        attention_by_layer: formulations that differ from layer to layer, instead of `attention` for all.
        initializer: of weights.
    """

    vocab_size: Size
    max_length: Size
    width: Size
    num_layers: Size
    attention: Attention
    feed_forward: FeedForward
    residual: Residual = PreNorm()
    positions: Positions | None = None
    embedding_norm: Norm | None = None
    output: TokenLogits = Tied()
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    attention_by_layer: tuple[Attention, ...] = ()
    initializer: Initializer = Normal(0.02)

    def build(self) -> DecoderModel:
        layer = Layer(
            attention=self.attention,
            feed_forward=self.feed_forward,
            residual=self.residual,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
        )
        positions = Learned(self.max_length) if self.positions is None else self.positions
        return DecoderModel(
            width=self.width,
            embeddings=Embeddings(
                vocab_size=self.vocab_size, positions=positions, norm=self.embedding_norm, dropout=self.dropout
            ),
            decoder=equal_stack(layer, self.num_layers, self.attention_by_layer),
            output=self.output,
            initializer=self.initializer,
        )
