"""Decoding: new tokens pass through a stack that remembers the keys and values of those before."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.attention.operands import Mask
from headjax.models.cache import Cache, GroupCache, LayerCache, is_empty, stored
from headjax.models.compute import StackCall
from headjax.models.layer import CACHE, TransformerLayer
from headjax.models.stack import LayerGroup, Layers, TransformerStack


def decode(stack: TransformerStack, x: jax.Array, call: StackCall, cache: Cache) -> tuple[jax.Array, Cache]:
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
    call = call._replace(attention=call.attention._replace(mask=mask, positions=positions), used=cache.used)
    if stack.config.position_bias is not None:
        call = stack.config.biased(stack.position_bias(positions, seen), call)
    layers = {}
    for group in stack.config.groups:
        x, layers[group.name] = _decode_group(group, getattr(stack, group.name), x, call, cache.layers[group.name])
    used = jnp.asarray(cache.used, jnp.int32) + length
    return stack.end(x), cache._replace(layers=layers, used=used)


def _decode_group(
    group: LayerGroup, layers: Layers, x: jax.Array, call: StackCall, cache: GroupCache
) -> tuple[jax.Array, GroupCache]:
    """Return the last layer's output for new tokens, and the cache with them in it.

    Layers in a list are computed one by one, and the cache is a list, too: a scan copies the caches of all layers for
    every token.
    """
    if isinstance(cache, list):
        held = []
        for index, one in enumerate(cache):
            layer, values = group.at(layers, call, index)
            x, report = group.body(layer, call)(x, values._replace(cache=one))
            held.append(one._replace(attention=report[CACHE]))
        return x, held
    together = cast(TransformerLayer, layers)
    values = group.values(together, call)._replace(cache=cache)
    x, reports = jax.lax.scan(group.body(together, call), x, values)
    return x, cache._replace(attention=reports[CACHE])


def empty_cache(
    stack: TransformerStack, example: jax.Array, capacity: int, encoder_output: jax.Array | None = None
) -> Cache:
    """Return an empty cache, with the cross-attention's keys and values of an encoder output in it."""
    layers = {
        group.name: _empty_group(group, getattr(stack, group.name), example, capacity, encoder_output)
        for group in stack.config.groups
    }
    batch = example.shape[0]
    positions, present = jnp.zeros((batch, capacity), jnp.int32), jnp.zeros((batch, capacity), bool)
    return Cache(layers=layers, positions=positions, present=present, used=0)


def _empty_group(
    group: LayerGroup, layers: Layers, example: jax.Array, capacity: int, encoder_output: jax.Array | None
) -> GroupCache:
    if isinstance(layers, nnx.List):
        return [_empty_layer(layer, example, capacity, encoder_output) for layer in layers]

    def empty(_: None, own: Any) -> tuple[None, LayerCache]:
        return None, _empty_layer(group.layer_of(layers, own), example, capacity, encoder_output)

    return jax.lax.scan(empty, None, group.varying_weights(layers), length=group.count)[1]


def _empty_layer(
    layer: TransformerLayer, example: jax.Array, capacity: int, encoder_output: jax.Array | None
) -> LayerCache:
    one = layer.attention.key_values(example, jnp.zeros((1, 1), jnp.int32))
    room = {name: jnp.zeros((a.shape[0], capacity, *a.shape[2:]), a.dtype) for name, a in one.items()}
    empty = {name: stored(array) for name, array in room.items()}
    if layer.config.cross_attention is None or encoder_output is None:
        return LayerCache(empty)
    return LayerCache(empty, layer.cross_attention.key_values(encoder_output, None))
