"""Token embeddings and the positions added to them."""

from __future__ import annotations

import abc
import dataclasses
import math

import jax
import jax.numpy as jnp

from headjax.errors import DataError, require, require_positive, require_rate
from headjax.models.dropout import Dropper
from headjax.models.norms import Norm
from headjax.serialize import kind
from headjax.tensors import Params, Tensor, Tensors


class Positions(abc.ABC):
    """Positions added to the embeddings. Rotary and relative positions belong to attention and the stack instead."""

    @abc.abstractmethod
    def tensors(self, width: int) -> Tensors:
        """The declared parameters."""

    @abc.abstractmethod
    def __call__(self, params: Params, positions: jax.Array, width: int) -> jax.Array:
        """`[batch or 1, length]` integers to `[batch or 1, length, width]`."""

    def check_length(self, length: int) -> None:
        """Raises `DataError` for sequences longer than the positions reach."""


@kind("learned")
@dataclasses.dataclass(frozen=True)
class Learned(Positions):
    """One learned vector per position.

    Attributes:
        max_length: number of positions.
        offset: added to every position first (RoBERTa counts from 2).
    """

    max_length: int
    offset: int = 0

    def __post_init__(self) -> None:
        require_positive(self, "max_length")
        require(self.offset >= 0, "offset", f"must not be negative, got {self.offset}")

    def tensors(self, width: int) -> Tensors:
        return {"position": Tensor((self.max_length + self.offset, width), (None, "embed"))}

    def __call__(self, params: Params, positions: jax.Array, width: int) -> jax.Array:
        return jnp.take(params["position"], positions + self.offset, axis=0)

    def check_length(self, length: int) -> None:
        if length > self.max_length:
            raise DataError(f"input_ids: {length} tokens, but the model has {self.max_length} learned positions")


@kind("sinusoidal")
@dataclasses.dataclass(frozen=True)
class Sinusoidal(Positions):
    """Sines and cosines of geometrically spaced frequencies (Vaswani et al. 2017, section 3.5), sines first."""

    def tensors(self, width: int) -> Tensors:
        return {}

    def __call__(self, params: Params, positions: jax.Array, width: int) -> jax.Array:
        half = width // 2
        rates = jnp.exp(jnp.arange(half) * (-math.log(10000.0) / max(half - 1, 1)))
        angles = positions[..., None].astype(jnp.float32) * rates.reshape(1, 1, -1)
        table = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        return jnp.pad(table, ((0, 0), (0, 0), (0, width - 2 * half)))


@kind("no_positions")
@dataclasses.dataclass(frozen=True)
class NoPositions(Positions):
    """Nothing is added."""

    def tensors(self, width: int) -> Tensors:
        return {}

    def __call__(self, params: Params, positions: jax.Array, width: int) -> jax.Array:
        return jnp.zeros((1, 1, width))


@kind("embeddings")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Embeddings:
    """dropout(norm(scale * E[token] + position + S[segment])).

    Attributes:
        vocab_size: number of tokens.
        positions: how positions enter.
        segments: number of segment embeddings (BERT has 2), 0 for none.
        scale_by_width: whether token embeddings are multiplied by sqrt(width) (Vaswani et al. 2017, section 3.4).
        norm: normalisation of the sum, or None.
        dropout: rate on the result.
    """

    vocab_size: int
    positions: Positions
    segments: int = 0
    scale_by_width: bool = False
    norm: Norm | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_positive(self, "vocab_size")
        require_rate(self, "dropout")
        require(self.segments >= 0, "segments", f"must not be negative, got {self.segments}")

    def tensors(self, width: int) -> Tensors:
        """The declared parameters."""
        tensors: Tensors = {"token": Tensor((self.vocab_size, width), ("vocabulary", "embed"))}
        tensors |= self.positions.tensors(width)
        if self.segments:
            tensors["segment"] = Tensor((self.segments, width), (None, "embed"))
        if self.norm is not None:
            tensors["norm"] = self.norm.tensors(width)
        return tensors

    def __call__(
        self,
        params: Params,
        tokens: jax.Array,
        *,
        positions: jax.Array,
        segments: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """`[batch, length]` tokens to `[batch, length, width]`."""
        width = params["token"].shape[-1]
        x = jnp.take(params["token"], tokens, axis=0)
        if self.scale_by_width:
            x = x * jnp.asarray(math.sqrt(width), x.dtype)
        x = x + self.positions(params, positions, width).astype(x.dtype)
        if self.segments:
            segments = jnp.zeros_like(tokens) if segments is None else segments
            x = x + jnp.take(params["segment"], segments, axis=0)
        if self.norm is not None:
            x = self.norm(params["norm"], x)
        return Dropper(self.dropout, key)(x)
