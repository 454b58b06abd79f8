"""The encoder-decoder: translation Transformers, BART, Marian and T5."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core.class_names import IGNORED
from headjax.core.errors import require
from headjax.core.fields import Count, Listed, Positive, Rate, Size
from headjax.core.kind import Kind
from headjax.core.serialize import kind
from headjax.core.tensors import FanIn, FanOut, Initializer, Xavier
from headjax.models.config import STACK_FIELDS, Batch, Loss, Output
from headjax.models.decoding import GenerativeConfig, GenerativeModel, Prompt, empty_cache
from headjax.models.inputs import Read, abstract_integers, batch_array, begins, read_tokens
from headjax.models.model import probes_of
from headjax.nn.block import Compute, ForwardOptions, State
from headjax.nn.embeddings import PositionKind, Range, RelativeBuckets, TokenEmbeddings
from headjax.nn.multi_head import MultiHeadAttention
from headjax.nn.norms import RMSNorm
from headjax.nn.operands import Mask, fold
from headjax.nn.projections import VocabularyLogits, cross_entropy
from headjax.nn.stack import Stack


@kind("encoder_decoder")
@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(GenerativeConfig):
    """p(y_t | y_<t, x) = softmax(output(decoder(y_<t, encoder(x)))) (Vaswani et al. 2017).

    Batches hold the source `input_ids [batch, length]` with its `attention_mask` (0 at padding), and either
    `decoder_input_ids [batch, target length]` or the `labels` they are made of (shifted right by one, after the start
    token); `decoder_attention_mask` may mark padding among them. `labels` are the target tokens, -100 where no loss is
    wanted. Packed pairs are kept apart by `segment_ids` and `decoder_segment_ids`; made of labels, each target then has
    the start token before it. `position_ids` and `decoder_position_ids`, where they are not given, count from 0 in each
    packed sequence; the target's leave out padding.

        >>> from headjax.models import EncoderDecoderConfig
        >>> headjax.summarize(EncoderDecoderConfig.transformer_base(), length=64).heads
        144

    Attributes:
        target_vocab_size: number of the target's tokens; None is `vocab_size`, that of the source.
        share_tokens: whether both sides use one table of token embeddings.
        position_bias, decoder_position_bias: relative positions of a stack's self-attention (T5), or None.
        scale_embeddings: whether token embeddings are multiplied by the root of the width.
        token_initializer: of token embeddings; None is `initializer`.
        decoder_layers: number of decoder layers; None is `num_layers`.
        decoder_attention, cross_attention: formulations of each decoder layer; None is the first of `attention`.
        decoder_hidden: units of each decoder layer; None is the first of `hidden`.
        decoder_alpha: as `alpha`, in the decoder.
        tied: whether the logits' weights are the target's token embeddings.
        output_bias: whether the logits have one bias per token.
        scale_logits: whether tied logits are divided by the root of the width (T5).
        start_token: first decoder input (`decoder_start_token_id`).
        padding_token: decoder input in place of a label that is -100 (`pad_token_id`).
        label_smoothing: share of the target spread evenly over the vocabulary in training, see `for_evaluation`.
    """

    STACKS = {  # noqa: RUF012
        "encoder": STACK_FIELDS | {"position_bias": "position_bias"},
        "decoder": {
            "num_layers": "decoder_layers",
            "attention": "decoder_attention",
            "cross_attention": "cross_attention",
            "hidden": "decoder_hidden",
            "alpha": "decoder_alpha",
            "position_bias": "decoder_position_bias",
        },
    }

    target_vocab_size: Size | None = None
    share_tokens: bool = True
    positions: PositionKind = "none"
    max_length: Size | None = None
    position_bias: RelativeBuckets | None = None
    decoder_position_bias: RelativeBuckets | None = None
    scale_embeddings: bool = False
    token_initializer: Initializer | None = None
    decoder_layers: Listed | None = None
    decoder_attention: tuple[Kind, ...] | None = None
    cross_attention: tuple[Kind, ...] | None = None
    decoder_hidden: tuple[Size, ...] | None = None
    decoder_alpha: Positive = 1.0
    tied: bool = True
    output_bias: bool = False
    scale_logits: bool = False
    start_token: Count = 0
    padding_token: Count = 0
    label_smoothing: Rate = 0.0

    def __post_init__(self) -> None:
        first = lambda value: value[0] if isinstance(value, tuple) and value else value  # noqa: E731
        attention, hidden = first(self.attention), first(self.hidden)
        like = {"decoder_layers": self.num_layers, "decoder_hidden": hidden}
        for name, value in (like | dict.fromkeys(("decoder_attention", "cross_attention"), attention)).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        super().__post_init__()

    @classmethod
    def transformer_base(cls, **changes: Any) -> Self:
        """Return the base Transformer of Vaswani et al. (2017), with these changes."""
        attention = Kind(MultiHeadAttention, num_heads=8, head_dim=64)
        return cls(**_TRANSLATION | {"width": 512, "attention": attention, "hidden": 2048} | changes)

    @classmethod
    def transformer_big(cls, **changes: Any) -> Self:
        """Return the big Transformer of Vaswani et al. (2017), with these changes."""
        attention = Kind(MultiHeadAttention, num_heads=16, head_dim=64)
        sizes = {"width": 1024, "attention": attention, "hidden": 4096, "dropout": 0.3}
        return cls(**_TRANSLATION | sizes | changes)

    @classmethod
    def t5_small(cls, **changes: Any) -> Self:
        """Return T5-small, version 1.0 (Raffel et al. 2020), with these changes."""
        unbiased = {"scale": 1.0, "projection_bias": False, "output_bias": False}
        attention, bias = Kind(MultiHeadAttention, num_heads=8, head_dim=64, **unbiased), RelativeBuckets(num_heads=8)
        sizes: dict[str, Any] = {"vocab_size": 32128, "width": 512, "num_layers": 6, "hidden": 2048}
        layer = {"attention": attention, "residual": "pre_norm", "norm": RMSNorm(1e-6), "activation": "relu"}
        more = {"feed_forward_bias": False, "position_bias": bias, "decoder_position_bias": bias, "scale_logits": True}
        rates = dict.fromkeys(("dropout", "attention_dropout", "feed_forward_dropout"), 0.1)
        return cls(**sizes | layer | more | rates | {"initializer": FanIn()} | changes)

    def validate(self) -> None:
        super().validate()
        one_table = not self.share_tokens or self.target_tokens == self.vocab_size
        sizes = f"vocab_size is {self.vocab_size}, target_vocab_size {self.target_tokens}"
        require(one_table, "share_tokens", f"{sizes}; only equal tables can be one")
        for field in ("start_token", "padding_token"):
            exists = getattr(self, field) < self.target_tokens
            require(exists, field, f"must be a token of the {self.target_tokens}, got {getattr(self, field)}")

    @property
    def target_tokens(self) -> int:
        return self.target_vocab_size or self.vocab_size

    def example_batch(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        return abstract_integers((batch_size, length), "input_ids", "attention_mask", "labels")

    def output_description(self) -> str:
        return f", output {'tied' if self.tied else 'untied'}"

    def ranges(self) -> dict[str, Range]:
        target, positions = Range(self.target_tokens, "target tokens"), self.position_table.range
        return {
            "input_ids": Range(self.vocab_size, "tokens"),
            "position_ids": positions,
            "decoder_input_ids": target,
            "labels": target._replace(ignored=IGNORED),
            "decoder_position_ids": positions,
        }


_TRANSLATION: dict[str, Any] = {
    "vocab_size": 37000,
    "num_layers": 6,
    "activation": "relu",
    "positions": "sinusoidal",
    "scale_embeddings": True,
    "token_initializer": FanOut(),
    "dropout": 0.1,
    "label_smoothing": 0.1,
    "initializer": Xavier(),
}
"""Fields common to the Transformers of Vaswani et al. (2017)."""


class EncoderDecoder(GenerativeModel, config=EncoderDecoderConfig):
    """logits = output(decoder(target embeddings, encoder(embeddings(source)))), see `EncoderDecoderConfig`.

    The arguments are those of `headjax.Model`.

    >>> attention = headjax.Kind(headjax.MultiHeadAttention, num_heads=2, head_dim=4)
    >>> layer = {"attention": attention, "cross_attention": attention, "hidden": 16}
    >>> config = headjax.EncoderDecoderConfig(vocab_size=50, max_length=8, width=8, num_layers=1, **layer)
    >>> tokens = jnp.ones((1, 4), jnp.int32)
    >>> model = headjax.EncoderDecoder(config, rngs=nnx.Rngs(0))
    >>> model({"input_ids": tokens, "decoder_input_ids": tokens}).logits.shape
    (1, 4, 50)
    """

    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig, *args: Any, **options: Any) -> None:
        embeddings = functools.partial(
            TokenEmbeddings,
            width=config.width,
            positions=config.position_table,
            scaled=config.scale_embeddings,
            initializer=config.token_initializer,
            norm=config.embeddings_norm,
            dropout=config.embeddings_rate,
        )
        self.embeddings = embeddings(config.vocab_size)
        self.encoder = Stack(config.stacks()["encoder"])
        self.decoder_embeddings = embeddings(None if config.share_tokens else config.target_tokens)
        self.decoder = Stack(config.stacks()["decoder"])
        logits = {"tied": config.tied, "bias": config.output_bias, "scaled": config.scale_logits}
        self.output = VocabularyLogits(config.width, config.target_tokens, **logits)
        super().__init__(config, *args, **options)

    def forward(self, batch: Batch, options: ForwardOptions = ForwardOptions()) -> Output:
        model, compute, key = options.compute.cast(self), options.compute, options.key
        state = model.embed(batch, compute, key)
        state, encoder_reports = model.encoder(state, options.of_stack(0))
        state = model.enter_decoder(state, compute, key)
        state, decoder_reports = model.decoder(state, options.of_stack(1))
        probes = probes_of(encoder=encoder_reports, decoder=decoder_reports)
        return model.finish(state, compute, key)._replace(probes=probes)

    def embed(self, batch: Batch, compute: Compute = Compute(), key: jax.Array | None = None) -> State:
        model = compute.cast(self)
        tokens, present, positions, segments = read_tokens(batch, self.config.position_table, causal=False)
        x = model.embeddings(tokens, positions=positions, key=fold(key, 0))  # [batch, length, width]
        mask = Mask(keys=present, query_segments=segments, key_segments=segments)
        return model.encoder.biased(State(x, batch=batch, mask=mask, positions=positions, query_mask=present))

    def enter_decoder(self, state: State, compute: Compute = Compute(), key: jax.Array | None = None) -> State:
        """Return the state that enters the decoder, from the state after the encoder's last layer."""
        model, batch = compute.cast(self), state.batch
        tokens, present, positions, segments = self.read_target(batch)
        x = model.embed_tokens(tokens, positions, fold(key, 2))  # [batch, target length, width]
        source = Mask(keys=state.query_mask, query_segments=segments, key_segments=batch.get("segment_ids"))
        decoder = State(
            x,
            memory=model.encoder.end(state.x),  # [batch, length, width]
            batch=batch,
            mask=Mask(causal=True, keys=present, query_segments=segments, key_segments=segments),
            positions=positions,
            query_mask=self.valid_tokens(batch),
            memory_mask=source,
        )
        return model.decoder.biased(decoder)

    def finish(self, state: State, compute: Compute = Compute(), key: jax.Array | None = None) -> Output:
        model = compute.cast(self)
        hidden = model.decoder.end(state.x)  # [batch, target length, width]
        return Output(hidden=hidden, logits=model.logits(hidden))

    def losses(self, output: Output, batch: Batch, *, smoothed: bool = True) -> Loss:
        labels, smoothing = batch_array(batch, "labels"), self.config.label_smoothing if smoothed else 0.0
        losses, weight = cross_entropy(output.require_logits(), labels, smoothing)
        return Loss(losses.sum(axis=1), weight.sum(axis=1))

    def decoder_inputs(self, batch: Batch) -> jax.Array:
        """Return `decoder_input_ids`, or the labels after the start token, without the last; if packed, of each."""
        if "decoder_input_ids" in batch:
            return batch_array(batch, "decoder_input_ids", tokens=True)
        labels = batch_array(batch, "labels", tokens=True)
        labels = jnp.where(labels == IGNORED, self.config.padding_token, labels)
        shifted = jnp.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=self.config.start_token)
        if "decoder_segment_ids" not in batch:
            return shifted
        return jnp.where(begins(batch["decoder_segment_ids"]), self.config.start_token, shifted)

    def valid_tokens(self, batch: Batch) -> jax.Array | None:
        """Return which target positions are no padding: without `decoder_attention_mask` those with labels."""
        mask = batch.get("decoder_attention_mask")
        if mask is None:
            return jnp.asarray(batch["labels"]) != IGNORED if "labels" in batch else None
        return jnp.asarray(mask).astype(bool)

    def count_tokens(self, batch: Batch) -> jax.Array:
        """The tokens of both sides."""
        inputs = self.decoder_inputs(batch)
        valid = self.valid_tokens(batch)
        return super().count_tokens(batch) + (inputs.size if valid is None else valid.sum())

    def read_target(self, batch: Batch, tokens: jax.Array | None = None) -> Read:
        """Return the decoder's inputs, by default those that the batch gives or its labels make."""
        tokens = self.decoder_inputs(batch) if tokens is None else tokens
        return read_tokens(batch, self.config.position_table, tokens, causal=True, side="decoder_")

    def embed_tokens(self, tokens: jax.Array, positions: jax.Array, key: jax.Array | None = None) -> jax.Array:
        return self.decoder_embeddings(tokens, positions=positions, key=key, table=self.token_table)

    def logits(self, hidden: jax.Array) -> jax.Array:
        logits: jax.Array = self.output(hidden, self.token_table)
        return logits

    @property
    def token_table(self) -> nnx.Param[Any]:
        """The target's table of token embeddings `[vocabulary, size]`."""
        return (self.embeddings if self.config.share_tokens else self.decoder_embeddings).token

    def prompt(self, batch: Batch, options: ForwardOptions, new_tokens: int) -> Prompt:
        state, _ = self.encoder(self.embed(batch, options.compute), options.of_stack(0))
        encoded = self.encoder.end(state.x)
        start = None
        if "decoder_input_ids" not in batch:
            start = jnp.full((len(encoded), 1), self.config.start_token, jnp.int32)
        tokens, present, positions, _ = self.read_target(batch, start)
        capacity = tokens.shape[1] + new_tokens
        cache = empty_cache(self.decoder, len(encoded), capacity, encoded.dtype, encoded, state.query_mask)
        present = jnp.ones(tokens.shape, bool) if present is None else present
        return tokens, present, positions, cache
