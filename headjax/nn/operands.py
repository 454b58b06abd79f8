"""The operands of attention (arrays, mask, dropout, KV cache), its result, and the checks of the arrays of a call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import ArgumentError
from headjax.mesh.mesh import dropped

KeyValues = dict[str, jax.Array]
"""Arrays `[batch, key, ...]` that a formulation computes from the attended sequence; a decoding cache holds them."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mask:
    """Conditions under which query i may attend to key j; all of them must hold.

    The conditions stay separate until a kernel needs an array, because kernels make use of single ones; `array`
    defines their meaning.

    Attributes:
        causal: j <= i + query_offset.
        keys: `[batch, key]` bool, False at padding.
        query_segments, key_segments: `[batch, query]`, `[batch, key]` integers; packed examples attend only within the
            same number.
        query_offset: position of the first query among the keys (scalar, or `[batch]`), for decoding with a cache.
        window: `|i + query_offset - j| < window`, so that a causal query sees itself and the window - 1 keys before it.
        query_positions, key_positions: `[batch or 1, query]`, `[batch or 1, key]` positions between which the window
            measures distances where padding lies between tokens; None counts the indices i and j.
    """

    causal: bool = dataclasses.field(default=False, metadata={"static": True})
    keys: jax.Array | None = None
    query_segments: jax.Array | None = None
    key_segments: jax.Array | None = None
    query_offset: jax.Array | None = None
    window: int | None = dataclasses.field(default=None, metadata={"static": True})
    query_positions: jax.Array | None = None
    key_positions: jax.Array | None = None

    def array(self, query_length: int, key_length: int) -> jax.Array | None:
        """Return `[batch or 1, 1, query, key]` bool, True where attention is allowed; None when everything is."""
        allowed: jax.Array | None = None
        if self.causal or self.window is not None:
            offset = jnp.zeros((), jnp.int32) if self.query_offset is None else self.query_offset
            query = jnp.reshape(offset, (-1, 1)) + jnp.arange(query_length)[None, :]
            key = jnp.arange(key_length)[None, :]
            if self.causal:
                allowed = (key[:, None, :] <= query[:, :, None])[:, None]
            if self.window is not None:
                if self.query_positions is not None and self.key_positions is not None:
                    query, key = self.query_positions, self.key_positions
                near = (jnp.abs(query[:, :, None] - key[:, None, :]) < self.window)[:, None]
                allowed = near if allowed is None else allowed & near
        if self.keys is not None:
            present = self.keys.astype(bool)[:, None, None, :]
            allowed = present if allowed is None else allowed & present
        if self.query_segments is not None and self.key_segments is not None:
            same = (self.query_segments[:, :, None] == self.key_segments[:, None, :])[:, None]
            allowed = same if allowed is None else allowed & same
        return allowed


class Dropout(NamedTuple):
    """Dropout, which zeroes entries with probability `rate` and scales the rest by 1 / (1 - rate)."""

    rate: float | jax.Array = 0.0  # traced in `of_examples` alone
    key: jax.Array | None = None  # None, as outside training, is the identity

    @property
    def active(self) -> bool:
        return self.key is not None and bool(self.rate > 0.0)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        if self.key is None or not self.active:
            return inputs
        return dropped(inputs, self.key, self.rate, inputs.shape)

    def of_examples(self, inputs: jax.Array) -> jax.Array:
        """Return the inputs `[batch, ...]` with whole examples zeroed: stochastic depth (Huang et al. 2016)."""
        if self.key is None:
            return inputs
        return dropped(inputs, self.key, self.rate, (inputs.shape[0], *(1,) * (inputs.ndim - 1)))


def fold(key: jax.Array | None, index: jax.Array | int) -> jax.Array | None:
    """An independent key for each index, or None without a key."""
    return None if key is None else jax.random.fold_in(key, index)


class AttentionInputs(NamedTuple):
    """The operands of one call of an attention kernel, see `headjax.nn.attend`."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    scale: float
    mask: Mask | None = None
    bias: jax.Array | None = None
    dropout: Dropout = Dropout()
    mixing: jax.Array | None = None
    observe: Callable[[jax.Array], jax.Array] | None = None
    softcap: float | None = None

    @property
    def heads(self) -> int:
        return self.query.shape[2] if self.mixing is None else self.mixing.shape[0]


class Attended(NamedTuple):
    """Result of attention.

    Attributes:
        context: `[batch, query, heads, value_dim]`, the weighted sums of values.
        probabilities: `[batch, heads, query, key]` before dropout, where the kernel holds them.
    """

    context: jax.Array
    probabilities: jax.Array | None


class AttentionCache(NamedTuple):
    """Keys and values (or the arrays they are computed from) of the tokens that an attention has seen.

    Attributes:
        entries: As `stored` orders them: `[batch, heads, capacity, size]`, or `[batch, capacity, ...]`.
        used: Number of tokens in it; the number 0 where a program itself made it empty.
    """

    entries: KeyValues
    used: jax.Array | int

    @property
    def capacity(self) -> int:
        """Number of tokens that it has room for, with one axis of examples."""
        array = next(iter(self.entries.values()))
        return array.shape[2 if array.ndim == 4 else 1]

    def append(self, new: KeyValues, count: int) -> AttentionCache:
        """Return the cache with the keys and values `[batch, count, ...]` of new tokens behind those in it."""
        entries = {name: append(self.entries[name], array, self.used) for name, array in new.items()}
        return AttentionCache(entries, self.used + count)

    def key_values(self) -> KeyValues:
        """Return the keys and values of all places `[batch, capacity, ...]`."""
        return {name: stored(array) for name, array in self.entries.items()}


class Cache(NamedTuple):
    """All that a decoder remembers of a batch between tokens.

    A token has the same index in all examples, padding included, so that all examples have equal shapes. A layer
    remembers keys and values by slot: `attention`, as in an `AttentionCache`, which can be written in place, and
    `cross_attention`, those of the encoder's output, which never change.
    """

    layers: list[dict[str, KeyValues]]
    positions: jax.Array  # [batch, capacity], which a batch may give itself
    present: jax.Array  # [batch, capacity] bool, False at padding and where no token is yet
    used: jax.Array | int  # tokens in it, padding included; the number 0 where a program itself made it empty
    source: jax.Array | None = None  # [batch, key] bool, False at the source's padding; None without

    def next_positions(self, present: jax.Array) -> jax.Array:
        """Return `[batch, new]` positions of new tokens, from that of the last that is no padding on, or from 0."""
        indices = jnp.arange(self.present.shape[1])
        last = jnp.argmax(jnp.where(self.present, indices, -1), axis=1)[:, None]
        reached = jnp.take_along_axis(self.positions, last, axis=1)
        reached = jnp.where(self.present.any(axis=1, keepdims=True), reached, -1)
        return jnp.maximum(reached + jnp.cumsum(present, axis=1), 0)

    def repeat(self, times: int) -> Cache:
        """Return the cache with every example repeated, copies one after another."""
        return jax.tree.map(lambda array: jnp.repeat(array, times, axis=0) if jnp.ndim(array) else array, self)

    def reorder(self, rows: jax.Array) -> Cache:
        """Return the cache of these examples, each with the same source as the one whose row it takes."""
        arrays = [layer["attention"] for layer in self.layers], self.positions, self.present
        entries, positions, present = jax.tree.map(lambda array: jnp.take(array, rows, axis=0), arrays)
        layers = [layer | {"attention": new} for layer, new in zip(self.layers, entries, strict=True)]
        return self._replace(layers=layers, positions=positions, present=present)


def stored(array: jax.Array) -> jax.Array:
    """Return keys or values `[batch, tokens, heads, size]` with heads first, as attention reads them, or back."""
    return jnp.swapaxes(array, 1, 2) if array.ndim == 4 else array


def append(entries: jax.Array, new: jax.Array, used: jax.Array | int) -> jax.Array:
    """Return `entries`, in a cache's order, with the keys or values of new tokens in place from index `used` on."""
    axis = 2 if new.ndim == 4 else 1
    added, units = stored(new).astype(entries.dtype), tuple(unit for unit in _units(entries) if unit != axis)
    axis -= sum(unit < axis for unit in units)
    written = jax.lax.dynamic_update_slice_in_dim(jnp.squeeze(entries, units), jnp.squeeze(added, units), used, axis)
    return jnp.expand_dims(written, units)


def without_units(layers: list[dict[str, KeyValues]]) -> Any:
    """Return the caches without axes of size 1, the form that a loop over tokens carries."""
    # XLA drops such axes from products of matrices. Where a loop carries them, it then writes a cache twice, in both
    # shapes, and copies it four times a token.
    return jax.tree.map(lambda array: jnp.squeeze(array, _units(array)), layers)


def with_units(carried: Any, layers: list[dict[str, KeyValues]]) -> list[dict[str, KeyValues]]:
    """Return carried caches in the shapes of `layers`."""
    restored: list[dict[str, KeyValues]] = jax.tree.map(lambda array, like: array.reshape(like.shape), carried, layers)
    return restored


def _units(array: jax.Array) -> tuple[int, ...]:
    return tuple(axis for axis, size in enumerate(array.shape) if size == 1)


LENGTHS = {"keys": "key", "query_segments": "query", "key_segments": "key", "query_positions": "query"}
LENGTHS |= {"key_positions": "key"}
"""Fields of a `Mask` that are arrays `[batch, length]`, and whose length it is."""


class CallArrays(NamedTuple):
    """The arrays of a call of `AttentionModule`, whose arguments they are; `batch` stands for any number of axes."""

    x: jax.Array  # [batch, query, width]
    memory: jax.Array | None  # [batch, key, memory_width]; None is x
    mask: Mask | None
    allowed: jax.Array | None  # a mask that is an array
    bias: jax.Array | None
    positions: jax.Array | None
    cache: AttentionCache | None
    dropout: jax.Array | None  # PRNG key; None where nothing is dropped


def check_sizes(call: CallArrays, width: int, memory_width: int) -> None:
    """Raise `ArgumentError` for inputs of other sizes."""
    shape, other = call.x.shape, None if call.memory is None else call.memory.shape
    if len(shape) < 2 or shape[-1] != width:
        raise ArgumentError(f"x: shape {list(shape)}; expected [..., query, {width}]")
    if other is not None and (other[:-2] != shape[:-2] or other[-1] != memory_width):
        raise ArgumentError(f"memory: shape {list(other)}; expected {[*shape[:-2], 'key', memory_width]}")


def one_batch_axis(call: CallArrays, heads: int) -> CallArrays:
    """Return the arrays as `[batch or 1, ...]`, masks as conditions and a bias, and positions.

    Raises `ArgumentError` for an array that does not broadcast to its meaning, and for a full cache.
    """
    batch, queries, cache = call.x.shape[:-2], call.x.shape[-2], call.cache
    if not heads:  # which attend to nothing
        call = call._replace(mask=None, allowed=None, bias=None, positions=None)
    memory = call.x if call.memory is None else call.memory
    keys, positions, mask = memory.shape[-2], _flat("positions", call.positions, batch, queries), call.mask
    if cache is not None:
        cache = cache._replace(entries={name: _merged(array, batch) for name, array in cache.entries.items()})
        positions = cache.used + jnp.arange(queries)[None] if positions is None else positions
    if cache is not None and heads:  # queries count from the tokens in it, and see no place that no token has filled
        keys, count = cache.capacity, 0 if isinstance(cache.used, jax.core.Tracer) else int(cache.used)
        if count + queries > keys:  # as far as it is known
            raise ArgumentError(f"cache: holds {count} tokens of at most {keys}, and {queries} more do not fit")
        mask = Mask(causal=True) if mask is None else mask
        if mask.query_offset is None:
            mask = dataclasses.replace(mask, query_offset=jnp.asarray(cache.used))
    bias, allowed = (_flat(name, getattr(call, name), batch, heads, queries, keys) for name in ("bias", "allowed"))
    if allowed is not None:
        hidden = float(np.finfo(np.float32).min)
        bias = jnp.where(allowed.astype(bool), 0.0 if bias is None else bias, hidden)
    if mask is not None:
        sizes = {"query": queries, "key": keys}
        fields: dict[str, Any] = {
            name: _flat(f"mask.{name}", getattr(mask, name), batch, sizes[of]) for name, of in LENGTHS.items()
        }
        mask = dataclasses.replace(mask, **fields)
        if cache is not None and not mask.causal:
            filled = jnp.arange(keys)[None] < cache.used + queries
            mask = dataclasses.replace(mask, keys=filled if mask.keys is None else mask.keys.astype(bool) & filled)
    read = None if call.memory is None else _merged(memory, batch)
    return CallArrays(_merged(call.x, batch), read, mask, None, bias, positions, cache, call.dropout)


def _merged(array: jax.Array, batch: tuple[int, ...]) -> jax.Array:
    """Return `[*batch, ...]` as `[examples, ...]`."""
    return array if len(batch) == 1 else array.reshape(math.prod(batch), *array.shape[len(batch) :])


def _flat(name: str, array: jax.Array | None, batch: tuple[int, ...], *sizes: int) -> jax.Array | None:
    """Return an array that broadcasts to `[*batch, *sizes]` as `[examples or 1, *sizes]`."""
    if array is None:
        return None
    target, axes = (*batch, *sizes), len(sizes)
    shape = (1,) * (len(target) - array.ndim) + array.shape
    if len(shape) != len(target) or any(size not in (1, most) for size, most in zip(shape, target, strict=True)):
        named = name if name != "allowed" else "mask"
        raise ArgumentError(f"{named}: shape {list(array.shape)} does not broadcast to {list(target)}")
    if math.prod(shape[:-axes]) == 1:
        return array.reshape(1, *shape[-axes:])
    return _merged(jnp.broadcast_to(array, (*batch, *shape[-axes:])), batch)
