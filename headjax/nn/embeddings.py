"""Token embeddings, the positions added to them, and the positions that bias attention logits."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core.errors import require
from headjax.core.fields import Checked, Listed, Size
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, bias_weight, weight
from headjax.mesh.mesh import by_example, look_up
from headjax.nn.norms import Norm
from headjax.nn.operands import Dropout
from headjax.nn.projections import into_heads

PositionKind = Literal["learned", "learned_present", "sinusoidal", "sinusoidal_endpoint", "none"]


class Range(NamedTuple):
    """The integers `low <= i < high`, by a plural noun; `ignored` is allowed too, as the label without a loss."""

    high: int | None  # None is no limit
    what: str
    low: int = 0
    ignored: int | None = None


@dataclasses.dataclass(frozen=True)
class Positions:
    """Positions added to the embeddings; rotary and relative ones belong to attention and the stack instead.

    * `learned`: one learned vector for each.
    * `learned_present`: the same, counting only tokens that are not the padding token (RoBERTa). The padding token's
      id is offset - 1, as in fairseq and `transformers`, and so is its own row of the table. Padding before or between
      other tokens does not move them, whatever the attention mask shows.
    * `sinusoidal`: sin(p r_i) in the first half of the vector, cos(p r_i) in the second, r_i = 10000^(-i / n),
      i < n = width / 2 (Vaswani et al. 2017, section 3.5; Marian).
    * `sinusoidal_endpoint`: n = width / 2 - 1, so that the last rate is exactly 1 / 10000 (tensor2tensor, fairseq).
    * `none`: nothing is added.

    Attributes:
        kind: which of them.
        max_length: number of positions; of those that are not learned the longest sequence that the rest of the model
            supports, None for any.
        offset: added to every learned position first (RoBERTa counts from 2).
    """

    kind: PositionKind
    max_length: int | None
    offset: int = 0

    @property
    def learned(self) -> bool:
        return self.kind.startswith("learned")

    def table(self, width: int) -> nnx.Param[Any] | None:
        """Declare the table of positions `[positions, width]`; None where they are not learned."""
        rows = (self.max_length or 0) + self.offset
        return weight((rows, width), (None, "embed")) if self.learned else None

    def waves(self, positions: jax.Array, width: int) -> jax.Array:
        """Return the sinusoids of `[batch or 1, length]` positions, `[batch or 1, length, width]`."""
        half = width // 2
        rates = jnp.exp(jnp.arange(half) * (-math.log(10000.0) / max(half - (self.kind == "sinusoidal_endpoint"), 1)))
        angles = positions[..., None].astype(jnp.float32) * rates.reshape(1, 1, -1)
        waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        return jnp.pad(waves, ((0, 0), (0, 0), (0, width - 2 * half)))

    @property
    def range(self) -> Range:
        return Range(self.max_length, "positions", -self.offset)

    def count(self, tokens: jax.Array) -> jax.Array:
        """The positions of an encoder's tokens `[batch, length]`, `[batch or 1, length]`, from 0."""
        if self.kind != "learned_present":
            return jnp.arange(tokens.shape[1])[None, :]
        present = tokens != self.offset - 1
        return jnp.cumsum(present, axis=1) * present - 1


class TokenEmbeddings(nnx.Module):
    """dropout(norm(scale * E[token] + position + S[segment])), and P x + b of that where `size` is given.

    A part that the model lacks is None.
    """

    def __init__(
        self,
        vocab_size: int | None,  # None where another module holds E
        width: int,
        positions: Positions,
        *,
        segments: int = 0,  # number of segment embeddings (BERT has 2)
        size: int | None = None,  # of all these vectors, mapped to the width last (ALBERT); None is the width, unmapped
        scaled: bool = False,  # whether scale is the root of E's width (Vaswani et al. 2017, section 3.4) and not 1
        norm: Norm | None = None,  # of the sum
        dropout: float = 0.0,  # on the result
        initializer: Initializer | None = None,  # of E; None is the model's
    ) -> None:
        mapped, size = size is not None, size or width
        self.positions, self.scaled, self.dropout = positions, scaled, dropout
        if vocab_size is not None:
            self.token = weight((vocab_size, size), ("vocabulary", "embed"), initializer)
        self.position = positions.table(size)
        self.segment = weight((segments, size), (None, "embed")) if segments else None
        self.norm = None if norm is None else norm.module(size)
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
        if self.scaled:
            x = x * jnp.asarray(math.sqrt(size), x.dtype)
        if self.position is not None:
            x = x + look_up(self.position[...], positions + self.positions.offset).astype(x.dtype)
        elif self.positions.kind != "none":
            x = x + self.positions.waves(positions, size).astype(x.dtype)
        if self.segment is not None:
            x = x + (self.segment[0][None, None] if segments is None else few_rows(self.segment[...], segments))
        if self.norm is not None:
            x = self.norm(x)
        x = Dropout(self.dropout, key)(x)
        return x if self.projection is None else into_heads(x, self.projection, self.projection_bias)


def few_rows(table: jax.Array, rows: jax.Array) -> jax.Array:
    """Return rows of a small table `[rows, width]` for `[batch, length]` numbers; the gradient is a product."""
    # A look-up's gradient adds all tokens up in two or three rows, for which a GPU's additions wait for each other: 69
    # of the 91 ms of a train step of BERT-base.
    chosen = jax.nn.one_hot(rows, table.shape[0], dtype=table.dtype)  # [batch, length, rows]
    return by_example(jnp.einsum("blr,rw->blw", chosen, table, precision="highest"))


@kind("relative_buckets")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativeBuckets(Checked):
    """One learned number per head and bucket of key position - query position (T5; Raffel et al. 2020, section 2.1).

    Distances below half the buckets of their direction have a bucket each; those up to `max_distance` share buckets
    that grow geometrically, and all longer ones the last.

    Attributes:
        num_heads: number of original heads; a layer that has lost some takes the columns of those it kept.
        buckets: number of buckets.
        max_distance: the distance from which on all share one bucket.
    """

    num_heads: Listed
    buckets: Size = 32
    max_distance: Size = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.buckets % 4 == 0, "buckets", f"must be a multiple of 4, got {self.buckets}")
        half, far = self.buckets // 2, self.max_distance
        require(far > half, "max_distance", f"must be above half the buckets ({half}), got {far}")


class RelativePositionBias(nnx.Module):
    """The bias of `RelativeBuckets`, added to the logits of a stack's self-attention."""

    def __init__(self, config: RelativeBuckets, bidirectional: bool) -> None:
        # Keys after the query have their own half of the buckets, or distance 0 for causal attention, which sees none.
        self.config, self.bidirectional = config, bidirectional
        self.table = weight((config.buckets, config.num_heads), (None, None))

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        """Return the bias `[batch or 1, heads, query, key]` of positions `[batch or 1, query]` and `[..., key]`."""
        buckets = self.bucket(key[:, None, :] - query[:, :, None])  # [batch or 1, query, key]
        return jnp.moveaxis(jnp.take(self.table[...], buckets, axis=0), -1, 1)

    def bucket(self, distance: jax.Array) -> jax.Array:
        count = self.config.buckets // 2 if self.bidirectional else self.config.buckets
        first = jnp.where(distance > 0, count, 0) if self.bidirectional else jnp.zeros_like(distance)
        size = jnp.abs(distance) if self.bidirectional else jnp.maximum(-distance, 0)
        exact = count // 2
        growth = jnp.log(jnp.maximum(size, 1) / exact) / math.log(self.config.max_distance / exact)
        far = jnp.minimum(exact + (growth * (count - exact)).astype(distance.dtype), count - 1)
        return first + jnp.where(size < exact, size, far)
