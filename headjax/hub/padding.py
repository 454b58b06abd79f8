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
    plain: dict[Place, Kind | None] = {}
    for layer in attention_layers(model):
        kind = layer.module.kind
        lost = kind.of is NoHeadsAttention
        if not lost and (not issubclass(kind.of, GroupedAttention) or kind.options.get("frequencies") is not None):
            raise InexpressibleError(f"{kind_of(kind)} attention of this kind cannot be padded")
        plain[layer.stack, layer.layer] = None if lost else kind
    targets: dict[Place, Kind] = {}
    for group in family.head_groups:
        in_group = {place: heads for place, heads in plain.items() if place[0] in group}
        targets |= _targets(model, family, in_group, group) if in_group else {}
    dtype = np.dtype(jnp.result_type(*(array.dtype for array in flatten(model.params).values())))

    def fill(layer: LayerModule) -> AttentionModule:
        place = layer.stack, layer.layer
        return layer.module.like(targets[place], _fill(layer.module, plain[place], targets[place], dtype))

    return map_attention(model, fill)


def _targets(
    model: Model, family: Family, plain: Mapping[Place, Kind | None], group: Sequence[str]
) -> dict[Place, Kind]:
    """Return the family's attention for each layer of a group of head stacks, all with the same number of heads."""
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
    return {place: _with_rotary(target, model, plain, place) for place in plain}


def _with_rotary(target: Kind, model: Model, plain: Mapping[Place, Kind | None], place: Place) -> Kind:
    """Return the target with the rotary positions of a layer's heads, and their factor in the scale of its logits.

    A layer that lost its heads gets those of a layer with the same window, or of any other.
    """
    layers = model.config.stacks()[model.config.site(*place).stack].layers
    others = [other for other in plain if other[0] == place[0]]
    alike = [other for other in others if layers[other[1]].window == layers[place[1]].window]
    like = next((heads for each in (place, *alike, *others) if (heads := plain[each]) is not None), None)
    if like is None or not issubclass(target.of, GroupedAttention) or target.rotary == like.rotary:
        return target
    old, new = (1.0 if rotary is None else rotary.logit_factor for rotary in (target.rotary, like.rotary))
    scale = None if target.scale is None else target.scale / old * new
    return target.replace(rotary=like.rotary, scale=scale)


def _fill(module: AttentionModule, heads: Kind | None, target: Kind, dtype: np.dtype) -> Params:
    """Return the target's parameters with a module's heads in their places and zeros elsewhere."""
    arrays = {path: np.asarray(array) for path, array in flatten(module.params).items()}
    tensors = flatten(declared(target.module(module.width, module.memory_width)))
    filled = {name: np.zeros(tensor.shape, dtype) for name, tensor in tensors.items()}
    lost = [name for name, array in arrays.items() if name not in filled and np.any(array)]
    if lost:
        named = ", ".join(lost).replace("_", " ").replace("/", " ")
        raise InexpressibleError(f"the family has no place for the {named}")
    for name in ("output/bias", "query_norm/scale", "key_norm/scale"):
        if name in filled:
            filled[name][...] = arrays.get(name, name != "output/bias")
    if heads is not None:
        # Neither norms nor heads that turn can be widened.
        norms = [heads.options.get(f"{name}_norm") for name in ("query", "key")]
        if norms != [target.options.get(f"{name}_norm") for name in ("query", "key")]:
            raise InexpressibleError("its norms of queries and keys are not those of the other layers")
        if heads.head_dim != target.head_dim and (heads.rotary is not None or any(norms)):
            raise InexpressibleError(f"heads of size {heads.head_dim} that turn cannot be widened to {target.head_dim}")
        _place(filled, heads, arrays, target)
    return nested(filled)


def _place(filled: dict[str, np.ndarray], heads: Kind, weights: Mapping[str, np.ndarray], target: Kind) -> None:
    """Write the heads' weights into the arrays of the target, and the ratio of scales into the queries."""
    ids = np.asarray(heads.ids)
    kv_heads = np.asarray(target.groups)[ids]
    for name in ("query", "key", "value"):
        sources, targets = (np.arange(len(ids)), ids) if name == "query" else (np.asarray(heads.groups), kv_heads)
        size = weights[name].shape[-1]
        filled[name][:, targets, :size] = weights[name][:, sources]
        bias = f"{name}_bias"
        if bias in weights and bias in filled:
            filled[bias][targets, :size] = weights[bias][sources]
    kernel = weights["output/kernel"]
    filled["output/kernel"][ids, : kernel.shape[1]] = kernel
    factor = heads.logit_scale / target.logit_scale
    if factor != 1.0 and "query_norm/scale" in filled:
        scale = filled["query_norm/scale"]
        norm = heads.query_norm.bind({"scale": scale}, len(scale)).scaled(factor)
        filled["query_norm/scale"] = np.asarray(norm.scale[...], scale.dtype)
    elif factor != 1.0:
        for name in {"query", "query_bias"} & filled.keys():
            filled[name] = (filled[name] * factor).astype(filled[name].dtype)


def _kv_heads(num_heads: int, layers: Sequence[Kind]) -> int:
    """Return the fewest KV heads that equal groups of consecutive heads can share."""
    for count in (count for count in range(1, num_heads) if num_heads % count == 0):
        keys = [{(head * count // num_heads, key) for head, key in zip(a.ids, a.groups, strict=True)} for a in layers]
        if all(len(pairs) == len(dict(pairs)) for pairs in keys):  # one KV head in each group
            return count
    return num_heads


def _bias_heads(model: Model, head_stack: str) -> int:
    """Return the number of heads that the position bias of a head stack's self-attention has."""
    name, slot = HEAD_STACKS[head_stack]
    stack = model.config.stacks().get(name)
    if stack is None or slot != "attention" or stack.position_bias is None:
        return 0
    return stack.position_bias.num_heads
