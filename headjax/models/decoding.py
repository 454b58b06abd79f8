"""Decoding: new tokens pass through a stack that remembers the keys and values of those before."""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from headjax.models.config import Batch, ModelConfig
from headjax.nn.cache import Cache, LayerCache, Prompt, stored
from headjax.nn.layer import CACHE, TransformerLayer
from headjax.nn.operands import Mask
from headjax.nn.passes import Pass
from headjax.nn.stack import TransformerStack


def decode(stack: TransformerStack, x: jax.Array, call: Pass, cache: Cache) -> tuple[jax.Array, Cache]:
    """Return the output `[batch, new, width]` for new tokens that the cache has admitted, and the cache with them."""
    length = x.shape[1]
    new = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=cache.used, slice_size=length, axis=1)
    # Windows count tokens, without padding, whatever positions a batch gives them.
    keys = jnp.maximum(jnp.cumsum(cache.present, axis=1) - 1, 0)
    positions, queries = new(cache.positions), new(keys)
    if isinstance(cache.used, int):  # known to be empty
        seen = positions
        mask = Mask(causal=True, keys=cache.present[:, :length], query_positions=queries, key_positions=queries)
    else:
        seen, offset = cache.positions, jnp.asarray(cache.used)
        mask = Mask(True, keys=cache.present, query_offset=offset, query_positions=queries, key_positions=keys)
    call = stack.biased(x, call._replace(mask=mask, positions=positions, used=cache.used), seen)
    columns, caches = stack.config.columns(call.bias), list[LayerCache]()
    for group in stack.config.groups:
        before = cache.layers[group.start : group.stop]
        x, reports = group.one_by_one(getattr(stack, group.name), x, call, columns, before)
        caches += [one._replace(attention=report[CACHE]) for one, report in zip(before, reports, strict=True)]
    used = jnp.asarray(cache.used, jnp.int32) + length
    return stack.end(x), cache._replace(layers=caches, used=used)


def empty_cache(
    stack: TransformerStack,
    example: jax.Array,
    capacity: int,
    memory: jax.Array | None = None,
    source: jax.Array | None = None,
) -> Cache:
    """Return an empty cache, with the cross-attention's keys and values of an encoder's output in it."""
    layers = [layer for group in stack.config.groups for layer in group.each(getattr(stack, group.name))]
    batch = example.shape[0]
    positions, present = jnp.zeros((batch, capacity), jnp.int32), jnp.zeros((batch, capacity), bool)
    return Cache([_empty_layer(layer, example, capacity, memory) for layer in layers], positions, present, 0, source)


def _empty_layer(layer: TransformerLayer, example: jax.Array, capacity: int, memory: jax.Array | None) -> LayerCache:
    one = layer.attention.key_values(example, jnp.zeros((1, 1), jnp.int32))
    room = {name: jnp.zeros((a.shape[0], capacity, *a.shape[2:]), a.dtype) for name, a in one.items()}
    crossed = layer.config.cross_attention is not None and memory is not None
    read = layer.cross_attention.key_values(memory, None) if crossed else None
    return LayerCache({name: stored(array) for name, array in room.items()}, read)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerativeConfig(ModelConfig):
    """A family that predicts the next token from those before it."""

    @abc.abstractmethod
    def prompt(self, model: Any, batch: Batch, call: Pass, new_tokens: int) -> Prompt:
        """Return the prompt of a batch, with room in the cache for this many new tokens."""

    @abc.abstractmethod
    def embedded(self, model: Any, tokens: jax.Array, positions: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Return what enters the decoder, `[batch, length, width]`, of tokens `[batch, length]` at these positions."""

    @abc.abstractmethod
    def logits(self, model: Any, hidden: jax.Array) -> jax.Array:
        """Return the logits `[batch, length, vocabulary]` of the decoder's output."""

    def decode(
        self,
        model: Any,
        tokens: jax.Array,
        present: jax.Array,
        cache: Cache,
        call: Pass,
        at: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> tuple[jax.Array, Cache]:
        """Return logits `[batch, new, vocabulary]` after each new token, or the one `at [batch]`, and the new cache."""
        positions = cache.next_positions(present) if positions is None else positions
        x = self.embedded(model, tokens, positions)
        call = call._replace(memory_mask=Mask(keys=cache.source))
        hidden, cache = decode(model.decoder, x, call, cache.admit(positions, present))
        hidden = hidden if at is None else jnp.take_along_axis(hidden, at[:, None, None], axis=1)
        return self.logits(model, hidden), cache
