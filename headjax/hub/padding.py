"""Padding: heads of any counts and sizes as equal layers of a family's own heads, zero where missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from headjax.core.kind import Kind
from headjax.core.modules import declared
from headjax.core.serialize import kind_of
from headjax.core.tensors import Params, flatten, nested
from headjax.heads.surgery import LayerModule, attention_layers, map_attention
from headjax.hub.family import Family
from headjax.hub.table import InexpressibleError
from headjax.models.config import HEAD_STACKS
from headjax.models.model import Model
from headjax.nn.module import AttentionModule, NoHeadsAttention
from headjax.nn.multi_head import GroupedAttention

Place = tuple[str, int]
"""Head stack and layer."""


def pad_heads(model: Model, family: Family) -> Model:
    """Return the same function in a family's own attention: heads in their original places, zeros in all others."""
    plain = {(found.stack, found.layer): _heads(found.module.kind) for found in attention_layers(model)}
    targets: dict[Place, Kind] = {}
    for group in family.head_groups:
        own = {place: heads for place, heads in plain.items() if place[0] in group}
        targets |= _targets(model, family, own, group) if own else {}
    dtype = np.dtype(jnp.result_type(*(array.dtype for array in flatten(model.params).values())))

    def fill(found: LayerModule) -> AttentionModule:
        place = found.stack, found.layer
        return found.module.like(targets[place], _fill(found.module, plain[place], targets[place], dtype))

    return map_attention(model, fill)


def _heads(attention: Kind) -> Kind | None:
    """Return an attention whose heads have weights of their own; None where it lost all heads."""
    if attention.of is NoHeadsAttention:
        return None
    if not issubclass(attention.of, GroupedAttention) or attention.options.get("frequencies") is not None:
        raise InexpressibleError(f"{kind_of(attention)} attention of this kind cannot be padded")
    return attention


def _targets(
    model: Model, family: Family, plain: Mapping[Place, Kind | None], group: Sequence[str]
) -> dict[Place, Kind]:
    """Return the family's attention of each layer of a group of head stacks, which have as many heads."""
    kinds = [attention for stack in group for attention in model.config.attentions().get(stack, ())]
    like = max(kinds, key=lambda attention: min(attention.num_heads, 1))
    heads = [attention for attention in plain.values() if attention is not None]
    count = max([1, *(max(each.ids) + 1 for each in heads), *(_bias_heads(model, stack) for stack in group)])
    size = max((max(each.head_dim, each.values) for each in heads), default=1)
    shape = family.head_shape(count, size, model.config.width)
    if shape is None:
        raise InexpressibleError(
            f"{', '.join(group)}: {count} heads of size {size} fit no {family.model_type} of width "
            f"{model.config.width}, where heads times size is the width"
        )
    target = family.standard(shape, like)
    if target.of is GroupedAttention:
        shape = shape._replace(kv_heads=_kv_heads(shape.num_heads, heads))
        target = family.standard(shape, like)
    return {place: _turned(target, _alike(model, plain, place)) for place in plain}


def _alike(model: Model, plain: Mapping[Place, Kind | None], place: Place) -> Kind | None:
    """Return heads that turn as those of a layer: its own, or if it lost them those of a layer with its window."""
    layers = model.config.stacks()[model.config.site(*place).stack].layers
    others = [other for other in plain if other[0] == place[0]]
    alike = [other for other in others if layers[other[1]].window == layers[place[1]].window]
    return next((found for each in (place, *alike, *others) if (found := plain[each]) is not None), None)


def _turned(target: Kind, like: Kind | None) -> Kind:
    """Return the target with the rotary positions of these heads; a factor of theirs is part of the logits' scale."""
    if like is None or not issubclass(target.of, GroupedAttention) or target.rotary == like.rotary:
        return target
    old, new = (1.0 if rotary is None else rotary.logit_factor for rotary in (target.rotary, like.rotary))
    scale = None if target.scale is None else target.scale / old * new
    return target.replace(rotary=like.rotary, scale=scale)


def _fill(module: AttentionModule, heads: Kind | None, target: Kind, dtype: np.dtype) -> Params:
    """Return the target's parameters with a module's heads in their places and zeros elsewhere."""
    own = {path: np.asarray(array) for path, array in flatten(module.params).items()}
    weights = flatten(declared(target.module(module.width, module.memory_width)))
    filled = {name: np.zeros(tensor.shape, dtype) for name, tensor in weights.items()}
    lost = [name for name, array in own.items() if name not in filled and np.any(array)]
    if lost:
        named = ", ".join(lost).replace("_", " ").replace("/", " ")
        raise InexpressibleError(f"the family has no place for the {named}")
    for name in ("output/bias", "query_norm/scale", "key_norm/scale"):
        if name in filled:
            filled[name][...] = own.get(name, name != "output/bias")
    if heads is not None:
        _check_same(heads, target)
        _place(filled, heads, own, target)
    return nested(filled)


def _place(filled: dict[str, np.ndarray], heads: Kind, weights: Mapping[str, np.ndarray], target: Kind) -> None:
    """Write the heads' weights into the arrays of the target, and the ratio of scales into the queries."""
    own = np.asarray(heads.ids)
    read = np.asarray(target.groups)[own]
    for name in ("query", "key", "value"):
        source, there = (np.arange(len(own)), own) if name == "query" else (np.asarray(heads.groups), read)
        size = weights[name].shape[-1]
        filled[name][:, there, :size] = weights[name][:, source]
        bias = f"{name}_bias"
        if bias in weights and bias in filled:
            filled[bias][there, :size] = weights[bias][source]
    kernel = weights["output/kernel"]
    filled["output/kernel"][own, : kernel.shape[1]] = kernel
    factor = heads.logit_scale / target.logit_scale
    if factor != 1.0 and "query_norm/scale" in filled:
        scale = filled["query_norm/scale"]
        norm = heads.query_norm.bind({"scale": scale}, len(scale)).scaled(factor)
        filled["query_norm/scale"] = np.asarray(norm.scale[...], scale.dtype)
    elif factor != 1.0:
        for name in {"query", "query_bias"} & filled.keys():
            filled[name] = (filled[name] * factor).astype(filled[name].dtype)


def _check_same(heads: Kind, target: Kind) -> None:
    """Raise unless the heads are normalised as the target's, and as large if they turn: neither can be widened."""
    own, norms = ([each.options.get(f"{name}_norm") for name in ("query", "key")] for each in (heads, target))
    if own != norms:
        raise InexpressibleError("its norms of queries and keys are not those of the other layers")
    if heads.head_dim != target.head_dim and (heads.rotary is not None or any(norms)):
        raise InexpressibleError(f"heads of size {heads.head_dim} that turn cannot be widened to {target.head_dim}")


def _kv_heads(num_heads: int, layers: Sequence[Kind]) -> int:
    """Return the fewest KV heads that equal groups of consecutive heads can share."""
    for count in range(1, num_heads):
        if num_heads % count == 0 and all(_agrees(heads, num_heads, count) for heads in layers):
            return count
    return num_heads


def _agrees(heads: Kind, num_heads: int, count: int) -> bool:
    """Return whether the heads of each of `count` groups read the same KV head."""
    read: dict[int, int] = {}
    pairs = zip(heads.ids, heads.groups, strict=True)
    return all(read.setdefault(head * count // num_heads, key) == key for head, key in pairs)


def _bias_heads(model: Model, head_stack: str) -> int:
    """Return the number of heads that the position bias of a head stack's self-attention has."""
    name, slot = HEAD_STACKS[head_stack]
    stack = model.config.stacks().get(name)
    if stack is None or slot != "attention" or stack.position_bias is None:
        return 0
    return stack.position_bias.num_heads
