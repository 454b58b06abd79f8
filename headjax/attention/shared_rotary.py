"""Grouped attention whose KV heads share complex components, one set for each rotary frequency."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headjax.attention.attend import Call
from headjax.attention.formulation import KeyValues, Wrapping
from headjax.attention.module import AttentionModule, Rngs, WrappingAttention
from headjax.attention.multi_head import Grouped, GroupedAttention
from headjax.attention.operands import Attended
from headjax.attention.projections import bias_weight, into_heads
from headjax.attention.rotary import Rotary, positions_or_count
from headjax.core.errors import require
from headjax.core.norms import RMSNorm
from headjax.core.serialize import kind
from headjax.core.tensors import Normal, Params, weight

FOLDED = ("key", "key_bias", "key_norm")
"""Parameters of the grouped layer inside that the shared components replace."""


@kind("shared_rotary")
@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedRotary(Wrapping):
    """Grouped attention with rotary embeddings whose KV heads share their pairs of dimensions, frequency by frequency.

    Rotary pair f of a query or key is one complex number, first + i second, which turns by e^(i t theta_f) at position
    t. The KV heads g share R_f complex components s of frequency f:

        s_f,r(y) = y w_f,r + b_f,r,    k_g,f = sum over r of c_g,f,r s_f,r(y) / rms_g(y)
        logit_h(m, n) = scale * Re sum over f of conj(q_h,f(x_m)) k_g(h),f(y_n) e^(i (n - m) theta_f)

    Components turn as keys do, because mixing with c commutes with turning, so the rotation is exact. With R_f =
    kv_heads any grouped layer of even head_dim can be written so. The division exists where the layer inside has a
    key_norm: its learned scale is part of w, and the weights of the original keys stay to compute rms_g alone.

    A decoding cache holds the turned components, 2 sum R_f numbers a token instead of kv_heads * head_dim, the values,
    and with key_norm one number 1 / rms_g per KV head, in float32.

    There are two evaluations, equal up to rounding. Heads attend to the components themselves with queries conj(c) q:
    nothing is rebuilt, and a pair of tokens costs 2 sum R_f products a head. Or keys of head_dim are rebuilt from the
    components. A single query, as in decoding, takes the first, because reading the cache takes most of its time;
    several take the one with fewer FLOPs. Normalised keys are always rebuilt, because 1 / rms_g is no part of a
    dot product.

    All arrays are real; a complex one has its real and its imaginary part along an axis of two.

    Attributes:
        inner: grouped attention with rotary embeddings of all dimensions; num_heads and head_ids are its own.
        components: number R_f of shared components of each frequency, head_dim / 2 numbers from the fastest on.
    """

    inner: Grouped
    components: tuple[int, ...]

    def validate(self) -> None:
        rotary, size = self.inner.rotary, self.inner.head_dim
        require(rotary is not None, "inner", "has no rotary embeddings, and components are shared by frequency")
        require(
            self.rotary.dim in (None, size), "inner", f"rotary turns {self.rotary.dim} of {size} dimensions, not all"
        )
        norm = self.inner.key_norm
        require(norm is None or isinstance(norm, RMSNorm), "inner", "key_norm must be an RMSNorm, which divides alone")
        pairs = len(self.components) == size // 2 and all(count >= 1 for count in self.components)
        require(pairs, "components", f"must be {size // 2} numbers of at least 1, got {self.components}")

    @property
    def rotary(self) -> Rotary:
        """Rotation of queries, keys and components."""
        if self.inner.rotary is None:
            raise TypeError("the layer inside has no rotary embeddings")
        return self.inner.rotary

    @property
    def total(self) -> int:
        """Number of components of all frequencies together; each is two real numbers."""
        return sum(self.components)

    @property
    def owners(self) -> np.ndarray:
        """Frequency of each component, `[total]`."""
        return np.repeat(np.arange(len(self.components)), self.components)

    @property
    def folded(self) -> tuple[str, ...]:
        """Parameters of the layer inside that it goes without here."""
        return FOLDED if self.inner.key_norm is None else ("key_norm",)

    def module(self, width: int, memory_width: int) -> SharedRotaryAttention:
        return SharedRotaryAttention(width, memory_width=memory_width, config=self)

    def rebuilds(self, query_length: int) -> bool:
        """Whether keys are rebuilt; otherwise the heads attend to the components."""
        fewer = self._of_keys(query_length) < self._of_components(query_length)
        return self.inner.key_norm is not None or (query_length > 1 and fewer)

    def _of_components(self, query_length: int) -> int:
        """Number of multiply-adds for each key token where heads attend to the components."""
        return query_length * self.num_heads * 2 * self.total

    def _of_keys(self, query_length: int) -> int:
        """Number of multiply-adds for each key token where keys are rebuilt."""
        return 4 * self.inner.kv_heads * self.total + query_length * self.num_heads * self.inner.head_dim

    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        inner, heads = self.inner, self.num_heads
        queries = query_length * width * heads * inner.head_dim
        normalised = inner.kv_heads * inner.head_dim if inner.key_norm is not None else 0
        stored = key_length * memory_width * (2 * self.total + inner.kv_heads * inner.values + normalised)
        cost = self._of_keys if self.rebuilds(query_length) else self._of_components
        pairs = key_length * (cost(query_length) + query_length * heads * inner.values)
        outputs = query_length * heads * inner.values * width
        return 2 * (queries + stored + pairs + outputs)


class SharedRotaryAttention(WrappingAttention):
    """Grouped attention whose KV heads share components: the module of `SharedRotary`.

    >>> rotary = headjax.attention.RotaryHalves()
    >>> inner = headjax.attention.Grouped(num_heads=4, kv_heads=2, head_dim=4, rotary=rotary)
    >>> layer = headjax.SharedRotaryAttention(16, inner=inner, components=(1, 2), rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((1, 3, 16))).shape
    (1, 3, 16)
    """

    formulation = SharedRotary
    config: SharedRotary

    def __init__(self, width: int, *, rngs: Rngs = None, params: Params | None = None, **options: Any) -> None:
        super().__init__(width, rngs=rngs, params=params, **options)
        config, memory_width, total = self.config, self.memory_width, self.config.total
        self.inner = config.inner.module(width, memory_width)
        for name in config.folded:
            setattr(self.inner, name, None)
        self.key = weight((memory_width, 2, total), ("embed", None, "shared_dim"))
        # With this variance a key is as large as one component.
        spread = Normal((2.0 * total / len(config.components)) ** -0.5)
        shape = (2, config.inner.kv_heads, total)
        self.mixing = weight(shape, (None, "kv_heads", "shared_dim"), spread, inputs=(0, 2))
        self.key_bias = bias_weight(config.inner.projection_bias, (2, total), (None, "shared_dim"))
        self.fill(rngs, params)

    def key_values(self, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        inner, config = self.inner, self.config
        shared = into_heads(inputs, self.key, self.key_bias)  # [batch, key, 2, total]
        first, second = shared[:, :, 0].astype(jnp.float32), shared[:, :, 1].astype(jnp.float32)
        angles = config.rotary.angles(positions_or_count(positions, inputs.shape[1]), config.inner.head_dim)
        turned = jnp.concatenate(config.rotary.turn(first, second, angles[..., config.owners]), axis=-1)
        kept = {"key": turned.astype(shared.dtype), "value": into_heads(inputs, inner.value, inner.value_bias)}
        if config.inner.key_norm is not None:
            original = into_heads(inputs, inner.key, inner.key_bias).astype(jnp.float32)
            size = jnp.mean(jnp.square(original), axis=-1) + config.inner.key_norm.epsilon
            kept["key_factor"] = jax.lax.rsqrt(size)  # [batch, key, kv_heads]
        return kept

    def attend(self, inputs: jax.Array, key_values: KeyValues, call: Call) -> Attended:
        query, value = self.inner.queries(inputs, call), self.inner.read(key_values["value"])
        if self.config.rebuilds(inputs.shape[1]):
            key = self.inner.read(self._rebuilt(key_values))
        else:
            query, key = self._mixed(query), key_values["key"][:, :, None]
        return call(query, key, value, scale=self.config.inner.logit_scale)

    def _mixed(self, query: jax.Array) -> jax.Array:
        """Return conj(c) q of every component, `[batch, query, heads, 2 total]`, real parts first."""
        config = self.config
        real, imaginary = jnp.take(self.mixing[...], jnp.asarray(config.inner.groups), axis=1)[:, None, None]
        first, second = (side[..., config.owners] for side in config.rotary.split(query))
        return jnp.concatenate([real * first + imaginary * second, real * second - imaginary * first], axis=-1)

    def _rebuilt(self, key_values: KeyValues) -> jax.Array:
        """Return the turned keys `[batch, key, kv_heads, head_dim]`, normalised where the layer inside normalises."""
        shared = key_values["key"].reshape(*key_values["key"].shape[:2], 2, self.config.total)
        key = rebuilt_pairs(self.config.components, self.mixing[...], shared)
        key = self.config.rotary.join(key[..., 0, :], key[..., 1, :])
        if "key_factor" in key_values:
            key = (key * key_values["key_factor"][..., None]).astype(key.dtype)
        return key

    def as_grouped(self) -> GroupedAttention:
        """Return the layer inside with the components multiplied out for its keys.

        Normalised keys come back divided by no root mean square, and times the learned scale.
        """
        components, join = self.config.components, self.config.rotary.join
        key = rebuilt_pairs(components, self.mixing[...], self.key[...][None])[0]
        found = self.inner.params | {"key": join(key[..., 0, :], key[..., 1, :])}
        if self.key_bias is not None:
            bias = rebuilt_pairs(components, self.mixing[...], self.key_bias[...][None, None])[0, 0]
            found["key_bias"] = join(bias[..., 0, :], bias[..., 1, :])
        grouped: GroupedAttention = self.inner.like(dataclasses.replace(self.config.inner, key_norm=None), found)
        return grouped

    def without_spare(self) -> AttentionModule:
        """Return the same function with at most as many components of a frequency as there are KV heads.

        Where heads were removed, the pairs of the remaining KV heads are fewer components, and exact.
        """
        config, params = self.config, self.params
        kv_heads, owners = config.inner.kv_heads, config.owners
        if max(config.components) <= kv_heads:
            return self
        mixing = _complex(params["mixing"], axis=0)
        parts: dict[str, list[np.ndarray]] = {name: [] for name in ("key", "key_bias", "mixing") if name in params}
        for frequency, count in enumerate(config.components):
            own = owners == frequency
            spare = count > kv_heads
            parts["mixing"].append(np.eye(kv_heads, dtype=mixing.dtype) if spare else mixing[:, own])
            for name in parts.keys() - {"mixing"}:
                shared = _complex(params[name], axis=-2)[..., own]
                parts[name].append(shared @ mixing[:, own].T if spare else shared)
        found = {
            name: _real(np.concatenate(pieces, axis=-1), axis=0 if name == "mixing" else -2, like=params[name])
            for name, pieces in parts.items()
        }
        components = tuple(min(count, kv_heads) for count in config.components)
        return self.like(dataclasses.replace(config, components=components), params | found)


def _complex(array: jax.Array, axis: int) -> np.ndarray:
    """Return the complex numbers whose real and imaginary parts lie along an axis of two."""
    real, imaginary = np.moveaxis(np.asarray(array, np.float32), axis, 0)
    return real + 1j * imaginary


def _real(array: np.ndarray, axis: int, like: jax.Array) -> jax.Array:
    """Return the inverse of `_complex`, in another array's type."""
    return jnp.asarray(np.stack([array.real, array.imag], axis=axis), like.dtype)


@functools.partial(jax.jit, static_argnums=0)
def rebuilt_pairs(components: tuple[int, ...], mixing: jax.Array, shared: jax.Array) -> jax.Array:
    """Return sum over r of c_g,f,r s_f,r for every frequency f.

    Frequencies with equally many components are one product of matrices.

    Args:
        components: number R_f of components of each frequency.
        mixing: c `[2, kv_heads, total]`.
        shared: s `[batch, key, 2, total]`.

    Returns:
        `[batch, key, kv_heads, 2, frequencies]`.
    """
    counts, starts = np.asarray(components), np.cumsum([0, *components[:-1]])
    parts, order = [], []
    for count in sorted(set(components)):
        chosen = np.flatnonzero(counts == count)
        index = starts[chosen][:, None] + np.arange(count)
        real, imaginary = mixing[:, :, index]
        # (c' + i c'')(s' + i s'') = c' s' - c'' s'' + i (c'' s' + c' s''): from part p of s to part o of the key.
        product = jnp.stack([jnp.stack([real, imaginary]), jnp.stack([-imaginary, real])])
        parts.append(jnp.einsum("bnpfr,pogfr->bngof", shared[..., index], product))
        order.append(chosen)
    found = jnp.concatenate(parts, axis=-1)
    return found if len(parts) == 1 else found[..., np.argsort(np.concatenate(order))]
