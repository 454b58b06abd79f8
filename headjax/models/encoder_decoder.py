"""The encoder-decoder, and the recipes of translation Transformers and T5."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.attention.attend import Call
from headjax.attention.operands import Mask
from headjax.core.errors import require
from headjax.core.fields import Count, Listed, NotNegative, Rate, Size
from headjax.core.kind import Kind
from headjax.core.norms import RMSNorm
from headjax.core.serialize import kind
from headjax.core.tensors import FanIn, Initializer, Normal, Xavier
from headjax.models.cache import DecodingState, Prompt
from headjax.models.compute import StackCall
from headjax.models.config import Batch, GenerativeModel, Loss, Options, Output
from headjax.models.decoding import decode, empty_cache
from headjax.models.embeddings import Embeddings, NoPositions, Positions, RelativeBuckets, Sinusoidal
from headjax.models.inputs import (
    abstract_integers,
    batch_array,
    batch_positions,
    batch_present,
    batch_tokens,
    embedded,
    reading,
)
from headjax.models.layer import Layer
from headjax.models.outputs import IGNORED, Tied, TokenLogits, cross_entropy
from headjax.models.ranges import Range
from headjax.models.recipe import Recipe, final_norm, layer_of
from headjax.models.residuals import PostNorm, PreNorm, Residual
from headjax.models.stack import Stack
from headjax.models.sublayers import FeedForward, fold


@kind("encoder_decoder")
@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderDecoderModel(GenerativeModel):
    """p(y_t | y_<t, x) = softmax(output(decoder(y_<t, encoder(x)))) (Vaswani et al. 2017).

    Batches hold the source `input_ids [batch, length]` with its `attention_mask` (0 at padding), and either
    `decoder_input_ids [batch, target length]` or the `labels` they are made of (shifted right by one, after the start
    token); `decoder_attention_mask` may mark padding among them. `labels` are the target tokens, -100 where no loss is
    wanted. Packed pairs are kept apart by `segment_ids` and `decoder_segment_ids`; made of labels, each target then has
    the start token before it. `position_ids` and `decoder_position_ids`, where they are not given, count from 0 in each
    packed sequence; the target's leave out padding.

        >>> from headjax.attention import Kind, MultiHeadAttention
        >>> from headjax.models import Translation
        >>> from headjax.models.sublayers import Dense
        >>> recipe = Translation(
        ...     vocab_size=37000, width=512, num_layers=6,
        ...     attention=Kind(MultiHeadAttention, num_heads=8, head_dim=64), feed_forward=Dense(2048),
        ... )
        >>> headjax.summarize(recipe.build(), length=64).heads
        144

    Attributes:
        embeddings: those of the source.
        encoder: the encoder's layers.
        decoder: the decoder's layers, with cross-attention, of any formulations.
        decoder_embeddings: those of the target; None is the source's.
        share_tokens: whether both sides use one table of token embeddings.
        output: how hidden states become logits; `tied` is tied to the target's token embeddings.
        start_token: first decoder input (`decoder_start_token_id`).
        padding_token: decoder input in place of a label that is -100 (`pad_token_id`).
        label_smoothing: share of the target spread evenly over the vocabulary in training, see `for_evaluation`.
    """

    embeddings: Embeddings
    encoder: Stack
    decoder: Stack
    decoder_embeddings: Embeddings | None = None
    share_tokens: bool = True
    output: TokenLogits = Tied()
    start_token: Count = 0
    padding_token: Count = 0
    label_smoothing: Rate = 0.0

    def validate(self) -> None:
        require(
            not self.encoder.crossed, "encoder", "cross_attention needs an encoder to attend to; this is the encoder"
        )
        require(self.decoder.crossed, "decoder", "its layers need a cross_attention to read the encoder's output")
        source, target = self.embeddings, self.target_embeddings
        for field in ("vocab_size", "size"):
            equal = getattr(source, field) == getattr(target, field)
            require(
                equal or not self.share_tokens,
                "share_tokens",
                f"embeddings.{field} is {getattr(source, field)}, decoder_embeddings.{field} "
                f"{getattr(target, field)}; only equal tables can be one",
            )
        for field in ("start_token", "padding_token"):
            known = 0 <= getattr(self, field) < target.vocab_size
            require(known, field, f"must be a token of the {target.vocab_size}, got {getattr(self, field)}")

    @property
    def target_embeddings(self) -> Embeddings:
        """The embeddings of the target."""
        return self.embeddings if self.decoder_embeddings is None else self.decoder_embeddings

    def parts(self) -> dict[str, nnx.Module]:
        target = self.target_embeddings.module(self.width)
        if self.share_tokens:
            del target.token
        return {
            "embeddings": self.embeddings.module(self.width),
            "encoder": self.encoder.module(self.width, self.width),
            "decoder_embeddings": target,
            "decoder": self.decoder.module(self.width, self.width),
            "output": self.output.module(self.width, self.target_embeddings.vocab_size),
        }

    def stacks(self) -> dict[str, Stack]:
        return {"encoder": self.encoder, "decoder": self.decoder}

    def enter(self, model: Any, stack: str, batch: Batch, options: Options) -> jax.Array:
        if stack == "encoder":
            return embedded(model.embeddings, batch, options)
        tokens, _, positions = self._target(batch)
        key, table = fold(options.key, 2), self._token_table(model)
        x: jax.Array = model.decoder_embeddings(tokens, positions=positions, key=key, table=table)
        return x

    def call(self, stack: str, batch: Batch, options: Options, memory: jax.Array | None) -> StackCall:
        source = reading(self.embeddings.positions, "encoder", batch, options)
        if stack == "encoder":
            return source
        _, present, positions = self._target(batch)
        packed = batch.get("decoder_segment_ids")
        mask = Mask(causal=True, keys=present, query_segments=packed, key_segments=packed)
        crossed = Mask(keys=source.query_mask, query_segments=packed, key_segments=batch.get("segment_ids"))
        return options.call(stack)._replace(
            attention=Call(mask=mask, positions=positions),
            cross_attention=Call(mask=crossed, positions=positions),
            encoder_output=memory,
            query_mask=self.counted(batch),
            key=fold(options.key, 3),
        )

    def finish(self, model: Any, hidden: jax.Array, batch: Batch, options: Options) -> Output:
        return Output(hidden=hidden, logits=model.output(hidden, self._token_table(model)))

    def _target(self, batch: Batch) -> tuple[jax.Array, jax.Array | None, jax.Array]:
        """Return the decoder's inputs, which of them are no padding, and their positions."""
        tokens = self.decoder_inputs(batch)
        present, counting = batch_present(batch, tokens, "decoder_attention_mask"), self.target_embeddings.positions
        return tokens, present, batch_positions(batch, counting, tokens, present, causal=True, side="decoder_")

    def decoder_inputs(self, batch: Batch) -> jax.Array:
        """The batch's `decoder_input_ids`, or its labels after the start token, without the last; if packed, of each.

        Raises:
            DataError: the batch has neither.
        """
        if "decoder_input_ids" in batch:
            return batch_tokens(batch, "decoder_input_ids")
        labels = batch_tokens(batch, "labels")
        labels = jnp.where(labels == IGNORED, self.padding_token, labels)
        shifted = jnp.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=self.start_token)
        if "decoder_segment_ids" not in batch:
            return shifted
        segments = batch_array(batch, "decoder_segment_ids")
        begins = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)))
        return jnp.where(begins, self.start_token, shifted)

    def counted(self, batch: Batch) -> jax.Array | None:
        """Return which target positions are no padding: without `decoder_attention_mask` those with labels."""
        mask = batch.get("decoder_attention_mask")
        if mask is None:
            return jnp.asarray(batch["labels"]) != IGNORED if "labels" in batch else None
        return jnp.asarray(mask).astype(bool)

    def prompt(self, model: Any, batch: Batch, options: Options, new_tokens: int) -> Prompt:
        source = self.call("encoder", batch, options, None)
        encoded, _ = model.encoder(self.enter(model, "encoder", batch, options), source)
        if "decoder_input_ids" in batch:
            tokens = batch_tokens(batch, "decoder_input_ids")
        else:
            tokens = jnp.full((encoded.shape[0], 1), self.start_token, jnp.int32)
        present = batch_present(batch, tokens, "decoder_attention_mask")
        capacity = tokens.shape[1] + new_tokens
        self.target_embeddings.positions.check_length(capacity)
        cache = empty_cache(model.decoder, encoded[:, :1], capacity, encoded)
        present = jnp.ones(tokens.shape, bool) if present is None else present
        return Prompt(tokens, present, DecodingState(cache, source.query_mask), batch.get("decoder_position_ids"))

    def decode(
        self,
        model: Any,
        tokens: jax.Array,
        present: jax.Array,
        state: DecodingState,
        options: Options,
        at: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> tuple[jax.Array, DecodingState]:
        table = self._token_table(model)
        positions = state.cache.next_positions(present) if positions is None else positions
        x = model.decoder_embeddings(tokens, positions=positions, table=table)
        call = StackCall(
            attention=Call(),
            cross_attention=Call(mask=Mask(keys=state.source), positions=positions),
            compute=options.compute,
        )
        cache = state.cache.admit(positions, present)
        hidden, cache = decode(model.decoder, x, call, cache)
        hidden = hidden if at is None else jnp.take_along_axis(hidden, at[:, None, None], axis=1)
        return model.output(hidden, table), state._replace(cache=cache)

    def loss(self, output: Output, batch: Batch) -> Loss:
        labels = batch_array(batch, "labels")
        losses, counted = cross_entropy(output.require_logits(), labels, self.label_smoothing)
        return Loss(losses.sum(axis=1), counted.sum(axis=1))

    def example_batch(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        return abstract_integers((batch_size, length), "input_ids", "attention_mask", "labels")

    def count_tokens(self, batch: Batch) -> jax.Array:
        """The tokens of both sides."""
        inputs = self.decoder_inputs(batch)
        counted = self.counted(batch)
        return super().count_tokens(batch) + (inputs.size if counted is None else counted.sum())

    def ranges(self) -> dict[str, Range]:
        target = self.target_embeddings
        tokens = {"decoder_input_ids": Range(target.vocab_size, "target tokens")}
        labels = {"labels": Range(target.vocab_size, "target tokens", ignored=IGNORED)}
        return self.embeddings.ranges() | tokens | labels | target.positions.ranges("decoder_position_ids")

    def for_evaluation(self) -> EncoderDecoderModel:
        return dataclasses.replace(self, label_smoothing=0.0)

    def flops(self, length: int) -> int:
        width, target = self.width, self.target_embeddings
        embedded = self.embeddings.flops(width, length) + target.flops(width, length)
        stacks = self.encoder.flops(width, length) + self.decoder.flops(width, length, width, length)
        return embedded + stacks + 2 * length * width * target.vocab_size

    def _token_table(self, model: Any) -> Any:
        """Return the target's table of token embeddings `[vocabulary, size]`."""
        return (model.embeddings if self.share_tokens else model.decoder_embeddings).token


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
    num_layers: Listed
    attention: Kind
    feed_forward: FeedForward
    decoder_attention: Kind | None = None
    cross_attention: Kind | None = None
    decoder_layers: Listed | None = None
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
        layer = dataclasses.replace(layer_of(self), cross_attention=None)
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

    attention: Kind
    feed_forward: FeedForward
    vocab_size: Size = 32128
    width: Size = 512
    num_layers: Listed = 6
    decoder_layers: Listed | None = None
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
