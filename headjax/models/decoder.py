"""The decoder language model and its recipe."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.attention.attend import Call
from headjax.core.errors import require
from headjax.core.fields import Listed, Rate, Size
from headjax.core.kind import Kind
from headjax.core.norms import Norm
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, Normal
from headjax.models.cache import DecodingState, Prompt
from headjax.models.compute import StackCall
from headjax.models.config import Batch, GenerativeModel, Loss, Options, Output
from headjax.models.decoding import decode, empty_cache
from headjax.models.embeddings import Embeddings, Learned, Positions
from headjax.models.inputs import abstract_integers, batch_present, batch_tokens, embedded, reading
from headjax.models.outputs import IGNORED, Tied, TokenLogits, cross_entropy
from headjax.models.ranges import Range
from headjax.models.recipe import Recipe, equal_stack
from headjax.models.residuals import PreNorm, Residual
from headjax.models.stack import Stack
from headjax.models.sublayers import FeedForward


@kind("decoder")
@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderModel(GenerativeModel):
    """A causal language model: p(x_t | x_<t) = softmax(output(stack(embeddings(x))))_(t-1).

    Batches hold `input_ids [batch, length]` and optionally `attention_mask` (0 at padding), `segment_ids` of packed
    examples, `position_ids` (by default counted from 0 in each example, without padding), and `labels`, which are the
    `input_ids` unshifted (the model shifts), -100 where no loss is wanted; without labels every token that is not
    padding is one. The first token of an example, and one after padding, is never predicted.

        >>> from headjax.attention import Kind, MultiHeadAttention
        >>> from headjax.models import LanguageModel
        >>> from headjax.models.sublayers import Dense
        >>> recipe = LanguageModel(
        ...     vocab_size=50257, max_length=1024, width=768, num_layers=12,
        ...     attention=Kind(MultiHeadAttention, num_heads=12, head_dim=64), feed_forward=Dense(3072),
        ... )
        >>> headjax.summarize(recipe.build(), length=64).parameters  # as many as GPT-2
        124439808

    Attributes:
        embeddings: token embeddings and positions.
        decoder: the layers, without cross-attention.
        output: how hidden states become logits.
    """

    embeddings: Embeddings
    decoder: Stack
    output: TokenLogits = Tied()

    def validate(self) -> None:
        require(not self.decoder.crossed, "decoder", "cross_attention needs an encoder; this model has none")

    def parts(self) -> dict[str, nnx.Module]:
        return {
            "embeddings": self.embeddings.module(self.width),
            "decoder": self.decoder.module(self.width, self.width),
            "output": self.output.module(self.width, self.embeddings.vocab_size),
        }

    def stacks(self) -> dict[str, Stack]:
        return {"decoder": self.decoder}

    def enter(self, model: Any, stack: str, batch: Batch, options: Options) -> jax.Array:
        return embedded(model.embeddings, batch, options, causal=True)

    def call(self, stack: str, batch: Batch, options: Options, memory: jax.Array | None) -> StackCall:
        return reading(self.embeddings.positions, stack, batch, options, causal=True)

    def finish(self, model: Any, hidden: jax.Array, batch: Batch, options: Options) -> Output:
        return Output(hidden=hidden, logits=model.output(hidden, model.embeddings.token))

    def prompt(self, model: Any, batch: Batch, options: Options, new_tokens: int) -> Prompt:
        tokens = batch_tokens(batch)
        present = batch_present(batch, tokens)
        capacity = tokens.shape[1] + new_tokens
        self.embeddings.positions.check_length(capacity)
        example = jnp.zeros((tokens.shape[0], 1, self.width), options.compute.type)
        cache = empty_cache(model.decoder, example, capacity)
        present = jnp.ones(tokens.shape, bool) if present is None else present
        return Prompt(tokens, present, DecodingState(cache), batch.get("position_ids"))

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
        positions = state.cache.next_positions(present) if positions is None else positions
        x = model.embeddings(tokens, positions=positions)
        call = StackCall(attention=Call(), compute=options.compute)
        cache = state.cache.admit(positions, present)
        hidden, cache = decode(model.decoder, x, call, cache)
        hidden = hidden if at is None else jnp.take_along_axis(hidden, at[:, None, None], axis=1)
        return model.output(hidden, model.embeddings.token), state._replace(cache=cache)

    def loss(self, output: Output, batch: Batch) -> Loss:
        targets = jnp.asarray(batch["labels"] if "labels" in batch else batch["input_ids"])[:, 1:]
        if "attention_mask" in batch:  # padding predicts nothing either
            present = jnp.asarray(batch["attention_mask"]).astype(bool)
            targets = jnp.where(present[:, 1:] & present[:, :-1], targets, IGNORED)
        if "segment_ids" in batch:  # the first token of a packed example follows another one
            segments = jnp.asarray(batch["segment_ids"])
            targets = jnp.where(segments[:, 1:] == segments[:, :-1], targets, IGNORED)
        losses, counted = cross_entropy(output.require_logits()[:, :-1], targets)
        return Loss(losses.sum(axis=1), counted.sum(axis=1))

    def example_batch(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        return abstract_integers((batch_size, length), "input_ids")

    def ranges(self) -> dict[str, Range]:
        labels = Range(self.embeddings.vocab_size, "tokens", ignored=IGNORED)
        return self.embeddings.ranges() | {"labels": labels}

    def flops(self, length: int) -> int:
        embedded = self.embeddings.flops(self.width, length)
        logits = 2 * length * self.width * self.embeddings.vocab_size
        return embedded + self.decoder.flops(self.width, length) + logits


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
    num_layers: Listed
    attention: Kind
    feed_forward: FeedForward
    residual: Residual = PreNorm()
    positions: Positions | None = None
    embedding_norm: Norm | None = None
    output: TokenLogits = Tied()
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    attention_by_layer: tuple[Kind, ...] = ()
    initializer: Initializer = Normal(0.02)

    def build(self) -> DecoderModel:
        positions = Learned(self.max_length) if self.positions is None else self.positions
        return DecoderModel(
            width=self.width,
            embeddings=Embeddings(
                vocab_size=self.vocab_size, positions=positions, norm=self.embedding_norm, dropout=self.dropout
            ),
            decoder=equal_stack(self),
            output=self.output,
            initializer=self.initializer,
        )
