"""Padding: models of any head counts and formulations as equal layers of a family's own heads, zero where missing.

Every formulation is first written as grouped heads (`as_grouped`). Those are then put into the places of the family's
heads (`pad_heads`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

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
from headjax.nn.collaborative import CollaborativeAttention
from headjax.nn.compressed import CompressedAttention
from headjax.nn.latent import LatentAttention
from headjax.nn.module import AttentionModule, NoHeadsAttention, WrappingAttention
from headjax.nn.multi_head import GroupedAttention, MultiHeadAttention


class PlainHeads(NamedTuple):
    """A layer as grouped heads."""

    attention: Kind | None
    weights: dict[str, np.ndarray]

    @property
    def size(self) -> int:
        """Size of the smallest head that holds queries, keys and values."""
        return 1 if self.attention is None else max(self.attention.head_dim, self.attention.values)


@functools.singledispatch
def as_grouped(module: AttentionModule) -> PlainHeads:
    """Return a layer as grouped heads, which compute the same function up to rounding."""
    raise InexpressibleError(f"{kind_of(module.kind)} attention cannot be written as multi-head attention")


@as_grouped.register
def _(module: NoHeadsAttention) -> PlainHeads:
    return PlainHeads(None, _arrays(module))


@as_grouped.register
def _(module: MultiHeadAttention) -> PlainHeads:
    if module.kind.frequencies is not None:
        raise InexpressibleError(
            "heads that turn at frequencies of their own cannot be written as multi-head attention"
        )
    weights = _arrays(module)
    return PlainHeads(_one_key_each(module.kind, weights, module.logit_scale), weights)


@as_grouped.register
def _(module: GroupedAttention) -> PlainHeads:
    return PlainHeads(module.kind, _arrays(module))


@as_grouped.register
def _(module: CollaborativeAttention) -> PlainHeads:
    """q_h = (x W_Q + b_Q) diag(m_h), k_h = y W_K + b_K in what m_h reads, and a dimension for a content bias."""
    attention, weights = module.kind, _arrays(module)
    query, key = weights["query"], weights["key"]
    query_bias = weights.get("query_bias", np.zeros(query.shape[1], query.dtype))
    key_bias = weights.get("key_bias", np.zeros(key.shape[1], key.dtype))
    heads = []
    for head, mixed in enumerate(np.asarray(module.mixing[...])):
        used = np.flatnonzero(mixed)
        parts = [query[:, used] * mixed[used], key[:, used], query_bias[used] * mixed[used], key_bias[used]]
        if attention.content_bias:
            content = weights["content_bias"][:, head : head + 1]
            added = [np.zeros_like(query[:, :1]), content, np.ones_like(query_bias[:1]), np.zeros_like(key_bias[:1])]
            parts = [np.concatenate(pair, axis=-1) for pair in zip(parts, added, strict=True)]
        heads.append(parts)
    size = max(parts[0].shape[-1] for parts in heads)
    stacked = [np.stack([_widen(part, size) for part in column], axis=-2) for column in zip(*heads, strict=True)]
    biased = attention.projection_bias or attention.content_bias
    names = ("query", "key", "query_bias", "key_bias")[: 4 if biased else 2]
    plain = {name: array for name, array in weights.items() if name.startswith(("value", "output"))}
    plain |= zip(names, stacked, strict=False)
    return PlainHeads(_one_key_each(attention, plain, attention.head_dim**-0.5), plain)


@as_grouped.register
def _(module: LatentAttention) -> PlainHeads:
    """k_h = y (W_C W_UK^h), v_h = y (W_C W_UV^h) + b_V^h, q_h = x (W_Z W_Q^h) + b_Q^h."""
    attention = module.kind
    for field in ("latent_norm", "query_norm", "rotary"):
        if getattr(attention, field) is not None:
            raise InexpressibleError(f"latent attention with a {field} cannot be written as multi-head attention")
    weights = _arrays(module)
    latent = weights.pop("latent")
    weights |= {name: _product(latent, weights[name]) for name in ("key", "value")}
    if attention.query_rank is not None:
        weights["query"] = _product(weights.pop("query_latent"), weights["query"])
    return PlainHeads(_one_key_each(attention, weights, attention.logit_scale), weights)


@as_grouped.register
def _(module: CompressedAttention) -> PlainHeads:
    """Return the heads inside with W_C W_K^g and W_C W_V^g for keys and values."""
    inner, weights = as_grouped(module.inner)
    latent = np.asarray(module.latent[...])
    return PlainHeads(inner, weights | {name: _product(latent, weights[name]) for name in ("key", "value")})


def _one_key_each(attention: Kind, weights: Mapping[str, np.ndarray], scale: float) -> Kind:
    """Return heads that share no key and no value."""
    return Kind(
        GroupedAttention,
        num_heads=attention.num_heads,
        kv_heads=attention.num_heads,
        head_dim=weights["query"].shape[-1],
        value_dim=weights["value"].shape[-1],
        scale=scale,
        head_ids=attention.ids,
        rotary=attention.rotary if attention.of is MultiHeadAttention else None,
    )


def _arrays(module: AttentionModule) -> dict[str, np.ndarray]:
    return {path: np.asarray(array) for path, array in flatten(module.params).items()}


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the product of `[a, b]` and `[b, ...]`, rounded once."""
    exact = np.tensordot(left.astype(np.float64), right.astype(np.float64), axes=1)
    return exact.astype(np.result_type(left, right))


def _widen(array: np.ndarray, size: int) -> np.ndarray:
    """Return the array with its last dimension filled up with zeros to a size."""
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, size - array.shape[-1])])


Place = tuple[str, int]
"""Head stack and layer."""


def pad_heads(model: Model, family: Family) -> Model:
    """Return the same function in a family's own attention: heads in their original places, zeros in all others."""
    plain: dict[Place, PlainHeads] = {}
    for found in attention_layers(model):
        with _located(found.stack, found.layer):
            plain[found.stack, found.layer] = as_grouped(found.module)
    targets: dict[Place, Kind] = {}
    for group in family.head_groups:
        own = {place: heads for place, heads in plain.items() if place[0] in group}
        targets |= _targets(model, family, own, group)
    width, dtype = model.config.width, np.dtype(jnp.result_type(*(a.dtype for a in flatten(model.params).values())))

    def fill(found: LayerModule) -> AttentionModule:
        place = found.stack, found.layer
        with _located(*place):
            return found.module.like(targets[place], _fill(plain[place], targets[place], width, dtype))

    return map_attention(model, fill)


@contextlib.contextmanager
def _located(stack: str, layer: int) -> Iterator[None]:
    """Put the layer before the body's `InexpressibleError`."""
    try:
        yield
    except InexpressibleError as error:
        raise InexpressibleError(f"{stack} layer {layer}: {error}") from None


def _targets(
    model: Model, family: Family, plain: Mapping[Place, PlainHeads], group: Sequence[str]
) -> dict[Place, Kind]:
    """Return the family's attention of each layer of a group of head stacks, which have as many heads."""
    kinds = [attention for stack in group for attention in model.config.attentions().get(stack, ())]
    like = _inside(max(kinds, key=lambda attention: min(attention.num_heads, 1)))
    heads = [entry.attention for entry in plain.values() if entry.attention is not None]
    count = max([1, *(max(each.ids) + 1 for each in heads), *(_bias_heads(model, stack) for stack in group)])
    size, width = max((entry.size for entry in plain.values()), default=1), model.config.width
    shape = family.head_shape(count, size, width)
    if shape is None:
        raise InexpressibleError(
            f"{', '.join(group)}: {count} heads of size {size} fit no {family.model_type} of width {width}, "
            "where heads times size is the width"
        )
    target = family.standard(shape, like)
    if target.of is GroupedAttention:
        shape = shape._replace(kv_heads=_kv_heads(shape.num_heads, heads))
        target = family.standard(shape, like)
    return {place: _turned(target, _alike(model, plain, place)) for place in plain}


def _inside(attention: Kind) -> Kind:
    """Return the formulation inside one around it, which has its biases, its rotation and its norms."""
    return _inside(attention.inner) if issubclass(attention.of, WrappingAttention) else attention


def _alike(model: Model, plain: Mapping[Place, PlainHeads], place: Place) -> Kind | None:
    """Return heads that turn as those of a layer: its own, or if it lost them those of a layer with its window."""
    layers = model.config.stacks()[model.config.site(*place).stack].layers
    others = [other for other in plain if other[0] == place[0]]
    alike = [other for other in others if layers[other[1]].window == layers[place[1]].window]
    return next((found for each in (place, *alike, *others) if (found := plain[each].attention) is not None), None)


def _turned(target: Kind, like: Kind | None) -> Kind:
    """Return the target with the rotary positions of these heads; a factor of theirs is part of the logits' scale."""
    if like is None or not issubclass(target.of, GroupedAttention) or target.rotary == like.rotary:
        return target
    old, new = (1.0 if rotary is None else rotary.logit_factor for rotary in (target.rotary, like.rotary))
    scale = None if target.scale is None else target.scale / old * new
    return target.replace(rotary=like.rotary, scale=scale)


def _fill(plain: PlainHeads, target: Kind, width: int, dtype: np.dtype) -> Params:
    """Return the target's parameters with these heads in their places and zeros elsewhere."""
    if not issubclass(target.of, GroupedAttention):
        raise InexpressibleError(f"cannot pad {target.of.__name__}")
    weights = flatten(declared(target.module(width, width)))
    filled = {name: np.zeros(tensor.shape, dtype) for name, tensor in weights.items()}
    lost = [name for name, array in plain.weights.items() if name not in filled and np.any(array)]
    if lost:
        named = ", ".join(lost).replace("_", " ").replace("/", " ")
        raise InexpressibleError(f"the family has no place for the {named}")
    for name in ("output/bias", "query_norm/scale", "key_norm/scale"):
        if name in filled:
            filled[name][...] = plain.weights.get(name, name != "output/bias")
    if plain.attention is not None:
        _check_same(plain.attention, target)
        _place(filled, plain.attention, plain.weights, target)
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
    if factor != 1.0 and heads.query_norm is not None:
        scale = filled["query_norm/scale"]
        norm = heads.query_norm.bind({"scale": scale}, len(scale)).scaled(factor)
        filled["query_norm/scale"] = np.asarray(norm.scale[...], scale.dtype)
    elif factor != 1.0:
        for name in {"query", "query_bias"} & filled.keys():
            filled[name] = (filled[name] * factor).astype(filled[name].dtype)


def _check_same(heads: Kind, target: Kind) -> None:
    """Raise unless the heads are normalised as the target's, and as large if they turn: neither can be widened."""
    norms = (target.query_norm, target.key_norm) if target.of is GroupedAttention else (None, None)
    if (heads.query_norm, heads.key_norm) != norms:
        raise InexpressibleError("its norms of queries and keys are not those of the other layers")
    if heads.head_dim != target.head_dim and (heads.rotary is not None or norms != (None, None)):
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
