"""Rotary position embeddings: queries and keys turn with their positions, so logits see differences of positions."""

from __future__ import annotations

import abc
import dataclasses
import math

import jax
import jax.numpy as jnp

from headjax.core.errors import require
from headjax.core.fields import Checked, Positive, Size
from headjax.core.serialize import kind
from headjax.nn.operands import Mask


class FrequencyScaling(Checked, abc.ABC):
    """Changes the rotation frequencies of a trained model so that it reads longer sequences."""

    @abc.abstractmethod
    def __call__(self, frequencies: jax.Array, base: float) -> jax.Array:
        """Return the scaled frequencies."""

    @property
    def logit_factor(self) -> float:
        """Factor of the logits that goes with the frequencies; an attention whose `scale` is None multiplies it in."""
        return 1.0


@kind("linear_scaling")
@dataclasses.dataclass(frozen=True)
class LinearScaling(FrequencyScaling):
    """All frequencies divided by one factor (position interpolation, Chen et al. 2023).

    Attributes:
        factor: divisor of the frequencies.
    """

    factor: Positive

    def __call__(self, frequencies: jax.Array, base: float) -> jax.Array:
        return frequencies / self.factor


@kind("llama3_scaling")
@dataclasses.dataclass(frozen=True)
class Llama3Scaling(FrequencyScaling):
    """Slow frequencies divided by `factor`, fast ones kept, those between interpolated (Llama 3.1).

    Attributes:
        factor: divisor of the slow frequencies.
        low_frequency: turns within `original_length` up to which a rate is slow.
        high_frequency: turns within `original_length` from which on a rate is fast.
        original_length: positions that the model was trained on before.
    """

    factor: Positive = 8.0
    low_frequency: Positive = 1.0
    high_frequency: Positive = 4.0
    original_length: Size = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.low_frequency, self.high_frequency
        require(low < high, "low_frequency", f"must be below high_frequency, got {low} and {high}")

    def __call__(self, frequencies: jax.Array, base: float) -> jax.Array:
        turns = self.original_length * frequencies / (2.0 * math.pi)
        kept = (turns - self.low_frequency) / (self.high_frequency - self.low_frequency)
        kept = jnp.clip(kept, 0.0, 1.0)
        return kept * frequencies + (1.0 - kept) * frequencies / self.factor


@kind("yarn_scaling")
@dataclasses.dataclass(frozen=True)
class YarnScaling(FrequencyScaling):
    """Slow frequencies divided by `factor`, fast ones kept, a ramp between, sharper logits (YaRN, Peng et al. 2023).

    Pair i makes n(i) = original_length * base^(-2i / dim) / (2 pi) turns within the original length. The ramp falls
    evenly from the pair with n(i) = `fast`, whose frequency is kept, to the pair with n(i) = `slow`, whose frequency is
    divided. Logits are multiplied by m^2 with m = 0.1 ln(factor) + 1 (section 3.4).

    Attributes:
        factor: divisor of the slow frequencies: the new length over the original one.
        original_length: positions that the model was trained on before.
        fast, slow: turns within `original_length` from which on a rate is kept, and up to which it is divided.
        whole_pairs: whether the ramp begins and ends at whole pairs, the next ones outside.
        attention_factor: m; None is 0.1 ln(factor) + 1, and 1 for a factor below 1.
    """

    factor: Positive
    original_length: Size
    fast: Positive = 32.0
    slow: Positive = 1.0
    whole_pairs: bool = True
    attention_factor: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.slow < self.fast, "slow", f"must be below fast, got {self.slow} and {self.fast}")

    @property
    def logit_factor(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor**2
        return (0.1 * math.log(max(self.factor, 1.0)) + 1.0) ** 2

    def __call__(self, frequencies: jax.Array, base: float) -> jax.Array:
        dim = 2 * frequencies.shape[0]
        # The pairs, real numbers, that make `fast` and `slow` turns within the original length.
        lengths = [self.original_length / (2.0 * math.pi * turns) for turns in (self.fast, self.slow)]
        first, last = (dim * math.log(length) / (2.0 * math.log(base)) for length in lengths)
        if self.whole_pairs:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dim - 1)
        ramp = (jnp.arange(dim // 2) - first) / (last - first if last != first else 0.001)
        divided = jnp.clip(ramp, 0.0, 1.0)
        return (1.0 - divided) * frequencies + divided * frequencies / self.factor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rotary(Checked, abc.ABC):
    """Rotary position embeddings (Su et al. 2021, RoFormer, equation 34).

    The first `dim` dimensions of a query or key form dim / 2 pairs. At position t, pair i turns by the angle t r_i with
    r_i = base^(-2i / dim), so q_s . k_t depends on s - t alone; dimensions beyond `dim` stay. The subclasses differ in
    which dimensions pair up, so weights trained with one need that one.

    Attributes:
        base: sets the slowest rate, about 1 / base radians per position.
        dim: number of dimensions that turn; None is all.
        scaling: change of the frequencies, or None.
    """

    base: float = 10000.0
    dim: Size | None = None
    scaling: FrequencyScaling | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.base > 1, "base", f"must be above 1, got {self.base}")
        if self.dim is not None:
            require(self.dim % 2 == 0, "dim", f"rotary dimensions come in pairs, got {self.dim}")

    def check(self, field: str, size: int) -> None:
        """Raise `ConfigError` unless heads of this size can turn; `field` is the name of the size in its config."""
        if self.dim is None:
            require(size % 2 == 0, field, f"rotary turns pairs of dimensions and needs an even {field}, got {size}")
        else:
            require(self.dim <= size, field, f"{field} is {size}, fewer than the rotary.dim of {self.dim}")

    @property
    def logit_factor(self) -> float:
        """Factor of the logits that the scaling asks for."""
        return 1.0 if self.scaling is None else self.scaling.logit_factor

    def angles(self, positions: jax.Array, size: int) -> jax.Array:
        """Convert `[batch or 1, length]` positions to `[batch or 1, length, dim / 2]` angles in radians, float32."""
        dim = size if self.dim is None else self.dim
        frequencies = jnp.exp(jnp.arange(0, dim, 2, dtype=jnp.float32) * (-math.log(self.base) / dim))
        if self.scaling is not None:
            frequencies = self.scaling(frequencies, self.base)
        return positions.astype(jnp.float32)[..., None] * frequencies[None, None]

    def __call__(self, vectors: jax.Array, positions: jax.Array) -> jax.Array:
        angles = self.angles(positions, vectors.shape[-1])[:, :, None]
        dim = 2 * angles.shape[-1]
        turning, still = vectors[..., :dim].astype(jnp.float32), vectors[..., dim:]
        rotated = self.join(*self.rotate(*self.split(turning), angles))
        return jnp.concatenate([rotated.astype(vectors.dtype), still], axis=-1)

    def rotate(self, first: jax.Array, second: jax.Array, angles: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Turn pairs (first, second) by angles in radians: (first + i second) e^(i angle), written in real numbers."""
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return first * cos - second * sin, first * sin + second * cos

    @abc.abstractmethod
    def split(self, vectors: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the first and the second dimension of every pair, `[..., dim / 2]` each."""

    @abc.abstractmethod
    def join(self, first: jax.Array, second: jax.Array) -> jax.Array:
        """The inverse of `split`."""


@kind("rotary_halves")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryHalves(Rotary):
    """Dimension i turns with dimension i + dim / 2: the pairing of Hugging Face's Llama, Qwen and Mistral, GPT-NeoX."""

    def split(self, vectors: jax.Array) -> tuple[jax.Array, jax.Array]:
        half = vectors.shape[-1] // 2
        return vectors[..., :half], vectors[..., half:]

    def join(self, first: jax.Array, second: jax.Array) -> jax.Array:
        return jnp.concatenate([first, second], axis=-1)


@kind("rotary_interleaved")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryInterleaved(Rotary):
    """Dimension 2i turns with dimension 2i + 1: the pairing of RoFormer, GPT-J and DeepSeek."""

    def split(self, vectors: jax.Array) -> tuple[jax.Array, jax.Array]:
        return vectors[..., 0::2], vectors[..., 1::2]

    def join(self, first: jax.Array, second: jax.Array) -> jax.Array:
        return jnp.stack([first, second], axis=-1).reshape(*first.shape[:-1], 2 * first.shape[-1])


def logit_scale(size: int, rotary: Rotary | None) -> float:
    """Return the factor of the dot products of queries and keys of a size: 1 / sqrt(size), and what scaling asks."""
    return 1.0 / math.sqrt(size) * (1.0 if rotary is None else rotary.logit_factor)


def positions_or_count(positions: jax.Array | None, length: int, mask: Mask | None = None) -> jax.Array:
    """Return the positions `[batch or 1, length]`; where None, they count up from the mask's query offset or from 0."""
    if positions is not None:
        return positions
    indices = jnp.arange(length)[None, :]
    if mask is None or mask.query_offset is None:
        return indices
    return jnp.reshape(mask.query_offset, (-1, 1)) + indices
