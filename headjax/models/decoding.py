"""Decoding: new tokens pass through a stack that remembers the keys and values of those before."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.nn.cache import Cache, GroupCache, LayerCache, is_empty, stored
from headjax.nn.layer import CACHE, TransformerLayer
from headjax.nn.operands import Mask
from headjax.nn.passes import Pass
from headjax.nn.stack import Layers, TransformerStack


def decode(stack: TransformerStack, x: jax.Array, call: Pass, cache: Cache) -> tuple[jax.Array, Cache]:
    """Return the output `[batch, new, width]` for new tokens that the cache has admitted, and the cache with them.

    A query sees the tokens in the cache and the new tokens before it: the same function as a forward of all tokens at
    once.
    """
    length = x.shape[1]
    positions = jax.lax.dynamic_slice_in_dim(cache.positions, cache.used, length, axis=1)
    # Windows count tokens, whatever positions a batch gives them.
    keys = cache.indices()
    queries = jax.lax.dynamic_slice_in_dim(keys, cache.used, length, axis=1)
    if is_empty(cache.used):
        seen, keys, mask = positions, queries, Mask(causal=True, keys=cache.present[:, :length])
    else:
        offset = jnp.asarray(cache.used)
        seen, mask = cache.positions, Mask(causal=True, keys=cache.present, query_offset=offset)
    mask = dataclasses.replace(mask, query_positions=queries, key_positions=keys)
    call = stack.biased(x, call.reading(mask=mask, positions=positions, used=cache.used), seen)
    columns, caches = stack.config.columns(call.attention.bias), dict[str, GroupCache]()
    for group in stack.config.groups:
        layers, before = getattr(stack, group.name), cache.layers[group.name]
        # Layers in a list have a cache each: a scan copies the caches of all layers for every token.
        if isinstance(before, list):
            x, reports = group.one_by_one(layers, x, call, columns, before)
            pairs = zip(before, reports, strict=True)
            caches[group.name] = [one._replace(attention=report[CACHE]) for one, report in pairs]
        else:
            x, report = group.scan(layers, x, call, columns, before)
            caches[group.name] = before._replace(attention=report[CACHE])
    used = jnp.asarray(cache.used, jnp.int32) + length
    return stack.end(x), cache._replace(layers=caches, used=used)


def empty_cache(stack: TransformerStack, example: jax.Array, capacity: int, memory: jax.Array | None = None) -> Cache:
    """Return an empty cache, with the cross-attention's keys and values of an encoder's output in it."""

    def empty(layers: Layers) -> GroupCache:
        if isinstance(layers, nnx.List):
            return [_empty_layer(layer, example, capacity, memory) for layer in layers]
        caches: LayerCache = jax.lax.map(lambda layer: _empty_layer(layer, example, capacity, memory), layers)
        return caches

    layers = {group.name: empty(getattr(stack, group.name)) for group in stack.config.groups}
    batch = example.shape[0]
    positions, present = jnp.zeros((batch, capacity), jnp.int32), jnp.zeros((batch, capacity), bool)
    return Cache(layers=layers, positions=positions, present=present, used=0)


def _empty_layer(layer: TransformerLayer, example: jax.Array, capacity: int, memory: jax.Array | None) -> LayerCache:
    one = layer.attention.key_values(example, jnp.zeros((1, 1), jnp.int32))
    room = {name: jnp.zeros((a.shape[0], capacity, *a.shape[2:]), a.dtype) for name, a in one.items()}
    empty = {name: stored(array) for name, array in room.items()}
    if layer.config.cross_attention is None or memory is None:
        return LayerCache(empty)
    return LayerCache(empty, layer.cross_attention.key_values(memory, None))
