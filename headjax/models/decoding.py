"""Decoding: new tokens pass through a stack that remembers the keys and values of those before."""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from headjax.models.config import Batch
from headjax.models.inputs import TokenConfig
from headjax.nn.cache import Cache, LayerCache, Prompt, stored
from headjax.nn.layer import CACHE
from headjax.nn.operands import Mask
from headjax.nn.passes import Pass
from headjax.nn.stack import TransformerStack


def empty_cache(
    stack: TransformerStack,
    example: jax.Array,
    capacity: int,
    memory: jax.Array | None = None,
    source: jax.Array | None = None,
) -> Cache:
    """Return an empty cache, with the cross-attention's keys and values of an encoder's output in it."""
    layers, batch = list[LayerCache](), example.shape[0]
    for group in stack.config.groups:
        for layer in group.each(getattr(stack, group.name)):
            one = layer.attention.key_values(example, jnp.zeros((1, 1), jnp.int32))
            room = {name: jnp.zeros((batch, capacity, *a.shape[2:]), a.dtype) for name, a in one.items()}
            read = None if memory is None else layer.cross_attention.key_values(memory, None)
            layers.append(LayerCache({name: stored(array) for name, array in room.items()}, read))
    return Cache(layers, jnp.zeros((batch, capacity), jnp.int32), jnp.zeros((batch, capacity), bool), 0, source)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerativeConfig(TokenConfig):
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
        positions: jax.Array,
        cache: Cache,
        call: Pass,
        at: jax.Array | None = None,
    ) -> tuple[jax.Array, Cache]:
        """Return logits `[batch, new, vocabulary]` after each new token, or the one `at [batch]`, and the new cache."""
        stack, length, caches = model.decoder, tokens.shape[1], list[LayerCache]()
        x = self.embedded(model, tokens, positions)
        write = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=cache.used, axis=1)
        positions = jnp.broadcast_to(positions, present.shape).astype(cache.positions.dtype)
        cache = cache._replace(positions=write(cache.positions, positions), present=write(cache.present, present))
        # Windows count tokens, without padding, whatever positions a batch gives them.
        keys = jnp.maximum(jnp.cumsum(cache.present, axis=1) - 1, 0)
        queries = jax.lax.dynamic_slice_in_dim(keys, cache.used, length, axis=1)
        if isinstance(cache.used, int):  # known to be empty
            seen, mask = positions, Mask(causal=True, keys=present, query_positions=queries, key_positions=queries)
        else:
            seen, offset = cache.positions, jnp.asarray(cache.used)
            mask = Mask(True, keys=cache.present, query_offset=offset, query_positions=queries, key_positions=keys)
        call = call._replace(mask=mask, positions=positions, used=cache.used, memory_mask=Mask(keys=cache.source))
        call = stack.biased(x, call, seen)
        columns = stack.config.columns(call.bias)
        for group in stack.config.groups:
            before = cache.layers[group.start : group.stop]
            x, reports = group.one_by_one(getattr(stack, group.name), x, call, columns, before)
            caches += [one._replace(attention=report[CACHE]) for one, report in zip(before, reports, strict=True)]
        hidden = stack.end(x) if at is None else jnp.take_along_axis(stack.end(x), at[:, None, None], axis=1)
        return self.logits(model, hidden), cache._replace(
            layers=caches, used=jnp.asarray(cache.used, jnp.int32) + length
        )
