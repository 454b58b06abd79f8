"""The recipes of encoder-decoders."""

from __future__ import annotations

import dataclasses

from headjax.attention.formulation import Attention
from headjax.core.fields import Count, NotNegative, Rate, Size
from headjax.core.serialize import kind
from headjax.core.tensors import FanIn, Initializer, Normal, Xavier
from headjax.models.embeddings import Embeddings, NoPositions, Positions, Sinusoidal
from headjax.models.encoder_decoder import EncoderDecoderModel
from headjax.models.feed_forward import FeedForward
from headjax.models.layer import Layer
from headjax.models.norms import RMSNorm
from headjax.models.outputs import Tied, TokenLogits
from headjax.models.position_bias import RelativeBuckets
from headjax.models.recipes.base import Recipe, final_norm
from headjax.models.residual import PostNorm, PreNorm, Residual
from headjax.models.stack import Stack


@kind("translation")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Translation(Recipe):
    """The Transformer of Vaswani et al. (2017): encoder, decoder, one vocabulary for both.

    Attributes:
        vocab_size: number of tokens.
        width: size of the residual stream.
        num_layers: number of encoder layers, and of decoder layers.
        attention: formulation of the encoder's self-attention.
        decoder_attention, cross_attention: formulations in the decoder; None is `attention`.
        feed_forward: feed-forward sub-layer of every layer.
        decoder_layers: number of decoder layers if it differs; None is `num_layers`.
        residual: how sub-layers join the stream; `pre_norm` adds final norms.
        positions: how positions enter, on each side.
        share_tokens: whether source and target use one table of token embeddings.
        output: how hidden states become logits.
        dropout: rate on embeddings and sub-layer outputs.
        attention_dropout: rate on attention probabilities.
        feed_forward_dropout: rate on the inner feed-forward activations.
        label_smoothing: share of the target spread evenly over the vocabulary.
        start_token, padding_token: see `EncoderDecoderModel`.
        initializer: of weights; token embeddings have standard deviation 1 / sqrt(width).
    """

    vocab_size: Size
    width: Size
    num_layers: Size
    attention: Attention
    feed_forward: FeedForward
    decoder_attention: Attention | None = None
    cross_attention: Attention | None = None
    decoder_layers: Size | None = None
    residual: Residual = PostNorm()
    positions: Positions = Sinusoidal()
    share_tokens: bool = True
    output: TokenLogits = Tied()
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    feed_forward_dropout: Rate = 0.0
    label_smoothing: Rate = 0.1
    start_token: Count = 0
    padding_token: Count = 0
    initializer: Initializer = Xavier()

    def build(self) -> EncoderDecoderModel:
        layer = Layer(
            attention=self.attention,
            feed_forward=self.feed_forward,
            residual=self.residual,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            feed_forward_dropout=self.feed_forward_dropout,
        )
        crossed = dataclasses.replace(
            layer,
            attention=self.decoder_attention or self.attention,
            cross_attention=self.cross_attention or self.attention,
        )
        norm = final_norm(self.residual)
        decoder_layers = self.num_layers if self.decoder_layers is None else self.decoder_layers
        return EncoderDecoderModel(
            width=self.width,
            embeddings=Embeddings(
                vocab_size=self.vocab_size,
                positions=self.positions,
                scale_by_width=True,
                dropout=self.dropout,
                token_initializer=Normal(self.width**-0.5),
            ),
            encoder=Stack(layers=(layer,) * self.num_layers, final_norm=norm),
            decoder=Stack(layers=(crossed,) * decoder_layers, final_norm=norm),
            share_tokens=self.share_tokens,
            output=self.output,
            start_token=self.start_token,
            padding_token=self.padding_token,
            label_smoothing=self.label_smoothing,
            initializer=self.initializer,
        )


@kind("t5")
@dataclasses.dataclass(frozen=True, kw_only=True)
class T5(Recipe):
    """T5 (Raffel et al. 2020): pre-norm RMSNorm, relative positions shared by each stack's layers, unscaled logits.

    Attributes:
        attention: formulation of all attention; T5's own has scale 1 and no biases.
        feed_forward: feed-forward sub-layer of every layer; T5's own has no biases.
        vocab_size: number of tokens.
        width: size of the residual stream.
        num_layers: number of encoder layers, and of decoder layers.
        decoder_layers: number of decoder layers if it differs; None is `num_layers`.
        output: how hidden states become logits; version 1.1 has `untied`.
        buckets, max_distance: see `RelativeBuckets`.
        epsilon: of the normalisations.
        dropout: rate on embeddings, sub-layer outputs, attention and inner activations.
        initializer: of weights.
    """

    attention: Attention
    feed_forward: FeedForward
    vocab_size: Size = 32128
    width: Size = 512
    num_layers: Size = 6
    decoder_layers: Size | None = None
    output: TokenLogits = Tied(scale_by_width=True)
    buckets: Size = 32
    max_distance: Size = 128
    epsilon: NotNegative = 1e-6
    dropout: Rate = 0.1
    initializer: Initializer = FanIn()

    def build(self) -> EncoderDecoderModel:
        norm = RMSNorm(self.epsilon)
        layer = Layer(
            attention=self.attention,
            feed_forward=self.feed_forward,
            residual=PreNorm(norm),
            dropout=self.dropout,
            attention_dropout=self.dropout,
            feed_forward_dropout=self.dropout,
        )
        crossed = dataclasses.replace(layer, cross_attention=self.attention)

        def stack(layer: Layer, count: int, bidirectional: bool) -> Stack:
            bias = RelativeBuckets(
                num_heads=self.attention.num_heads,
                buckets=self.buckets,
                max_distance=self.max_distance,
                bidirectional=bidirectional,
            )
            return Stack(layers=(layer,) * count, final_norm=norm, position_bias=bias)

        decoder_layers = self.num_layers if self.decoder_layers is None else self.decoder_layers
        return EncoderDecoderModel(
            width=self.width,
            embeddings=Embeddings(vocab_size=self.vocab_size, positions=NoPositions(), dropout=self.dropout),
            encoder=stack(layer, self.num_layers, True),
            decoder=stack(crossed, decoder_layers, False),
            output=self.output,
            initializer=self.initializer,
        )
