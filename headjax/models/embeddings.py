"""Token embeddings, the positions added to them, and the positions that bias attention logits."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.attention.operands import Dropout
from headjax.attention.projections import bias_weight, into_heads
from headjax.core.errors import DataError, require
from headjax.core.fields import Checked, Count, Listed, Rate, Size
from headjax.core.modules import Spec
from headjax.core.norms import Norm
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, weight
from headjax.mesh.mesh import by_example, look_up
from headjax.models.ranges import Range


class Positions(Checked, abc.ABC):
    """Positions added to the embeddings. Rotary and relative positions belong to attention and the stack instead."""

    def table(self, width: int) -> nnx.Param[Any] | None:
        """Declare the table of positions `[positions, width]`; None where they are not learned."""
        return None

    @abc.abstractmethod
    def __call__(self, positions: jax.Array, width: int, table: nnx.Param[Any] | None) -> jax.Array:
        """`[batch or 1, length]` integers to `[batch or 1, length, width]`; `table` is the learned one."""

    def check_length(self, length: int) -> None:
        """Raises `DataError` for sequences longer than the positions reach."""

    def ranges(self, name: str) -> dict[str, Range]:
        """The positions that a batch may give itself, under this name; empty where there is no limit."""
        return {}

    def count(self, tokens: jax.Array) -> jax.Array:
        """The positions of an encoder's tokens `[batch, length]`, `[batch or 1, length]`, from 0."""
        return jnp.arange(tokens.shape[1])[None, :]


@kind("learned")
@dataclasses.dataclass(frozen=True)
class Learned(Positions):
    """One learned vector per position.

    Attributes:
        max_length: number of positions.
        offset: added to every position first (RoBERTa counts from 2).
    """

    max_length: Size
    offset: Count = 0

    def table(self, width: int) -> nnx.Param[Any]:
        return weight((self.max_length + self.offset, width), (None, "embed"))

    def __call__(self, positions: jax.Array, width: int, table: nnx.Param[Any] | None) -> jax.Array:
        return look_up(cast(nnx.Param[Any], table)[...], positions + self.offset)

    def ranges(self, name: str) -> dict[str, Range]:
        return {name: Range(self.max_length, "positions", -self.offset)}

    def check_length(self, length: int) -> None:
        if length > self.max_length:
            raise DataError(f"input_ids: {length} tokens, but the model has {self.max_length} learned positions")


@kind("learned_present")
@dataclasses.dataclass(frozen=True)
class LearnedPresent(Learned):
    """One learned vector per position, counting only tokens that are not the padding token (RoBERTa).

    The padding token's id is offset - 1, as in fairseq and `transformers`, and so is its own row of the table. Padding
    before or between other tokens does not move them, whatever the attention mask shows.
    """

    offset: Count = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.offset >= 1, "offset", "must be at least 1, row offset - 1 is that of padding")

    def count(self, tokens: jax.Array) -> jax.Array:
        present = tokens != self.offset - 1
        return jnp.cumsum(present, axis=1) * present - 1


@kind("sinusoidal")
@dataclasses.dataclass(frozen=True)
class Sinusoidal(Positions):
    """sin(p r_i) in the first half of the vector, cos(p r_i) in the second, r_i = 10000^(-i / n), i < width / 2.

    Vaswani et al. (2017), section 3.5, have n = width / 2, as Marian does; tensor2tensor and fairseq end exactly at
    1 / 10000 with n = width / 2 - 1.

    Attributes:
        endpoint: whether the last rate is 1 / 10000 (n = width / 2 - 1).
    """

    endpoint: bool = False

    def __call__(self, positions: jax.Array, width: int, table: nnx.Param[Any] | None) -> jax.Array:
        half = width // 2
        rates = jnp.exp(jnp.arange(half) * (-math.log(10000.0) / max(half - self.endpoint, 1)))
        angles = positions[..., None].astype(jnp.float32) * rates.reshape(1, 1, -1)
        waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        return jnp.pad(waves, ((0, 0), (0, 0), (0, width - 2 * half)))


@kind("no_positions")
@dataclasses.dataclass(frozen=True)
class NoPositions(Positions):
    """Nothing is added.

    Attributes:
        max_length: longest sequence that the rest of the model supports, such as that of its rotary positions; None is
            any.
    """

    max_length: Size | None = None

    def __call__(self, positions: jax.Array, width: int, table: nnx.Param[Any] | None) -> jax.Array:
        return jnp.zeros((1, 1, width))

    def ranges(self, name: str) -> dict[str, Range]:
        return {} if self.max_length is None else {name: Range(self.max_length, "positions")}

    def check_length(self, length: int) -> None:
        if self.max_length is not None and length > self.max_length:
            raise DataError(f"input_ids: {length} tokens, but the model supports {self.max_length}")


@kind("embeddings")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Embeddings(Spec):
    """dropout(norm(scale * E[token] + position + S[segment])), and P x + b of that where `size` is given.

    Attributes:
        vocab_size: number of tokens.
        positions: how positions enter.
        segments: number of segment embeddings (BERT has 2), 0 for none.
        scale_by_width: whether token embeddings are multiplied by the root of their size (Vaswani et al. 2017,
            section 3.4).
        norm: normalisation of the sum, or None.
        dropout: rate on the result.
        token_initializer: of token embeddings; None is the model's.
        size: size of all these vectors, mapped to the model's width last (ALBERT); None is the width, without a map.
    """

    vocab_size: Size
    positions: Positions
    segments: Count = 0
    scale_by_width: bool = False
    norm: Norm | None = None
    dropout: Rate = 0.0
    size: Size | None = None
    token_initializer: Initializer | None = None

    def ranges(self) -> dict[str, Range]:
        """The integers that `input_ids`, `token_type_ids` and `position_ids` may hold."""
        found = {"input_ids": Range(self.vocab_size, "tokens")}
        if self.segments:
            found["token_type_ids"] = Range(self.segments, "segments")
        return found | self.positions.ranges("position_ids")

    def token_size(self, width: int) -> int:
        """Size of a token's vector in a model of this width."""
        return width if self.size is None else self.size

    def module(self, width: int) -> TokenEmbeddings:
        """Return the module."""
        return TokenEmbeddings(self, width)

    def flops(self, width: int, length: int) -> int:
        """Floating-point operations for one sequence: those of the map to the width; look-ups are free."""
        return 0 if self.size is None else 2 * length * self.size * width


class TokenEmbeddings(nnx.Module):
    """The module of `Embeddings`; a part that the spec lacks is None."""

    def __init__(self, config: Embeddings, width: int) -> None:
        size, mapped = config.token_size(width), config.size is not None
        self.config = config
        self.token = weight((config.vocab_size, size), ("vocabulary", "embed"), config.token_initializer)
        self.position = config.positions.table(size)
        self.segment = weight((config.segments, size), (None, "embed")) if config.segments else None
        self.norm = None if config.norm is None else config.norm.module(size)
        self.projection = weight((size, width), (None, "embed")) if mapped else None
        self.projection_bias = bias_weight(mapped, (width,), ("embed",))

    def __call__(
        self,
        tokens: jax.Array,
        *,
        positions: jax.Array,
        segments: jax.Array | None = None,
        key: jax.Array | None = None,
        table: nnx.Param[Any] | None = None,
    ) -> jax.Array:
        """`[batch, length]` tokens to `[batch, length, width]`; the table of tokens is another module's if given."""
        table = self.token if table is None else table
        size = table.shape[-1]
        x = look_up(table[...], tokens)  # [batch, length, size]
        if self.config.scale_by_width:
            x = x * jnp.asarray(math.sqrt(size), x.dtype)
        x = x + self.config.positions(positions, size, self.position).astype(x.dtype)
        if self.segment is not None:
            x = x + (self.segment[0][None, None] if segments is None else few_rows(self.segment[...], segments))
        if self.norm is not None:
            x = self.norm(x)
        x = Dropout(self.config.dropout, key)(x)
        return x if self.projection is None else into_heads(x, self.projection, self.projection_bias)


def few_rows(table: jax.Array, rows: jax.Array) -> jax.Array:
    """Return rows of a small table `[rows, width]` for numbers `[batch, length]`, exactly.

    The gradient is a product. That of a look-up adds all tokens up in two or three rows, for which a GPU's additions
    wait for each other: 69 of the 91 ms of a train step of BERT-base.
    """
    chosen = jax.nn.one_hot(rows, table.shape[0], dtype=table.dtype)  # [batch, length, rows]
    return by_example(jnp.einsum("blr,rw->blw", chosen, table, precision="highest"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PositionBias(Spec, abc.ABC):
    """A bias of self-attention logits that depends on positions; all layers of a stack share it.

    Attributes:
        num_heads: number of original heads.
    """

    num_heads: Listed

    @abc.abstractmethod
    def module(self) -> Any:
        """Return the module, which computes the bias.

        It takes `[batch or 1, query]` and `[batch or 1, key]` positions to `[batch or 1, heads, query, key]`. `heads`
        are all original heads; a layer that has lost some takes the columns of those it kept.
        """


@kind("relative_buckets")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativeBuckets(PositionBias):
    """One learned number per head and bucket of key position - query position (T5; Raffel et al. 2020, section 2.1).

    Distances below half the buckets of their direction have a bucket each; those up to `max_distance` share buckets
    that grow geometrically, and all longer ones the last.

    Attributes:
        buckets: number of buckets.
        max_distance: the distance from which on all share one bucket.
        bidirectional: whether keys after the query have their own half of the buckets; otherwise they have distance 0,
            for causal attention, which never sees them.
    """

    buckets: Size = 32
    max_distance: Size = 128
    bidirectional: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.buckets % 4 == 0, "buckets", f"must be a multiple of 4, got {self.buckets}")
        require(
            self.max_distance > self.buckets // 2,
            "max_distance",
            f"must be above half the buckets ({self.buckets // 2}), got {self.max_distance}",
        )

    def module(self) -> RelativePositionBias:
        return RelativePositionBias(self)

    def bucket(self, distance: jax.Array) -> jax.Array:
        """The bucket of each signed distance (key minus query)."""
        count = self.buckets // 2 if self.bidirectional else self.buckets
        first = jnp.where(distance > 0, count, 0) if self.bidirectional else jnp.zeros_like(distance)
        size = jnp.abs(distance) if self.bidirectional else jnp.maximum(-distance, 0)
        exact = count // 2
        growth = jnp.log(jnp.maximum(size, 1) / exact) / math.log(self.max_distance / exact)
        far = jnp.minimum(exact + (growth * (count - exact)).astype(distance.dtype), count - 1)
        return first + jnp.where(size < exact, size, far)


class RelativePositionBias(nnx.Module):
    """The module of `RelativeBuckets`."""

    def __init__(self, config: RelativeBuckets) -> None:
        self.config = config
        self.table = weight((config.buckets, config.num_heads), (None, None))

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        """Return the bias `[batch or 1, heads, query, key]` of positions `[batch or 1, query]` and `[..., key]`."""
        buckets = self.config.bucket(key[:, None, :] - query[:, :, None])  # [batch or 1, query, key]
        return jnp.moveaxis(jnp.take(self.table[...], buckets, axis=0), -1, 1)
