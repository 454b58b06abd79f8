"""Decoding: new tokens pass through a stack that remembers the keys and values of those before."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from headjax.models.config import Batch
from headjax.models.inputs import TokenConfig
from headjax.models.model import Model
from headjax.nn.block import CACHE
from headjax.nn.cache import AttentionCache, Cache, LayerCache, Prompt, stored
from headjax.nn.operands import Mask
from headjax.nn.stack import Stack
from headjax.nn.state import ForwardOptions, State


def empty_cache(
    stack: Stack,
    example: jax.Array,
    capacity: int,
    memory: jax.Array | None = None,
    source: jax.Array | None = None,
) -> Cache:
    """Return an empty cache, with the cross-attention's keys and values of an encoder's output in it."""
    layers, batch = list[LayerCache](), example.shape[0]
    for group in stack.config.groups:
        for layer in group.each(getattr(stack, group.name)):
            shapes = layer.attention.key_values(example, jnp.zeros((1, 1), jnp.int32))
            empty = {name: jnp.zeros((batch, capacity, *a.shape[2:]), a.dtype) for name, a in shapes.items()}
            cross = None if memory is None else layer.cross_attention.key_values(memory, None)
            layers.append(LayerCache({name: stored(array) for name, array in empty.items()}, cross))
    return Cache(layers, jnp.zeros((batch, capacity), jnp.int32), jnp.zeros((batch, capacity), bool), 0, source)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerativeConfig(TokenConfig):
    """A family that predicts the next token from those before it."""


class GenerativeModel(Model):
    """A model that predicts the next token from those before it, by its stack `decoder`.

    The methods of decoding take the model in the type to compute in, see `headjax.Model.unstacked`.
    """

    decoder: Stack

    def prompt(self, batch: Batch, options: ForwardOptions, new_tokens: int) -> Prompt:
        """Return the prompt of a batch, with room in the cache for this many new tokens."""
        raise NotImplementedError

    def embed_tokens(self, tokens: jax.Array, positions: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Return what enters the decoder, `[batch, length, width]`, of tokens `[batch, length]` at these positions."""
        raise NotImplementedError

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Return the logits `[batch, length, vocabulary]` of the decoder's output."""
        raise NotImplementedError

    def decode(
        self,
        tokens: jax.Array,
        present: jax.Array,
        positions: jax.Array,
        cache: Cache,
        options: ForwardOptions,
        at: jax.Array | None = None,
    ) -> tuple[jax.Array, Cache]:
        """Return logits `[batch, new, vocabulary]` after each new token, or the one `at [batch]`, and the new cache."""
        length = tokens.shape[1]
        x = self.embed_tokens(tokens, positions)
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
        state = State(x, mask=mask, positions=positions, memory_mask=Mask(keys=cache.source))
        before = [
            {"attention": AttentionCache(layer.attention, cache.used), "cross_attention": layer.cross_attention}
            for layer in cache.layers
        ]
        state, reports = self.decoder(self.decoder.biased(state, seen), options, before)
        layers = [old._replace(attention=new[CACHE]) for old, new in zip(cache.layers, reports, strict=True)]
        hidden = self.decoder.end(state.x)
        hidden = hidden if at is None else jnp.take_along_axis(hidden, at[:, None, None], axis=1)
        return self.logits(hidden), cache._replace(layers=layers, used=jnp.asarray(cache.used, jnp.int32) + length)
