"""Padding: models of any head counts and formulations as equal layers of a family's own heads, zero where missing.

Every formulation is first written as plain heads, each with a query, key, value and output of its own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from headjax.attention.collaborative import Collaborative, SharedKey, Tucker
from headjax.attention.compressed import Compressed
from headjax.attention.formulation import Attention, NoHeads, Wrapping
from headjax.attention.latent import Latent
from headjax.attention.multi_head import Grouped, MultiHead
from headjax.attention.rotary import Rotary
from headjax.attention.shared_rotary import SharedRotary
from headjax.core.norms import Norm
from headjax.core.serialize import kind_of
from headjax.core.tensors import Params, flatten, nested
from headjax.heads.surgery import attention_layers, map_attention
from headjax.hub.family import Family
from headjax.hub.table import InexpressibleError
from headjax.models.config import HEAD_STACKS
from headjax.models.model import Model


@dataclasses.dataclass(frozen=True)
class PlainHeads:
    """head_h = softmax((x W_Q^h + b_Q^h)(y W_K^g + b_K^g)^T * scale)(y W_V^g + b_V^g), g = reads[h].

    Attributes:
        ids: original number of each head.
        reads: number of the key and value head that each head reads.
        scale: factor of the logits.
        weights: `query [width, heads, dim]`, `key [width, kv, dim]`, `value [width, kv, value_dim]`,
            `output [heads, value_dim, width]`.
        biases: biases of `query`, `key`, `value` and `output`, where the layer has them.
        rotary, query_norm, key_norm: as in `Grouped`; the norms' weights are in `norms`.
        norms: weights of the norms of `query` and `key`, `[dim]` each.
    """

    ids: tuple[int, ...]
    reads: tuple[int, ...]
    scale: float
    weights: dict[str, np.ndarray]
    biases: dict[str, np.ndarray]
    rotary: Rotary | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    norms: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def size(self) -> int:
        """Size of the smallest head that holds queries, keys and values."""
        return max(self.weights["query"].shape[-1], self.weights["value"].shape[-1])


@functools.singledispatch
def plain_heads(attention: Attention, params: Params) -> PlainHeads:
    """Return a layer as plain heads, which compute the same function up to rounding.

    Raises:
        InexpressibleError: the formulation is not multi-head attention with other weights; the message says why.
    """
    raise InexpressibleError(f"{kind_of(attention)} attention is no multi-head attention with other weights")


@plain_heads.register
def _(attention: NoHeads, params: Params) -> PlainHeads:
    return PlainHeads((), (), 1.0, {}, _biases(params, "output"))


@plain_heads.register
def _(attention: MultiHead, params: Params) -> PlainHeads:
    return PlainHeads(
        attention.ids,
        tuple(range(attention.num_heads)),
        attention.logit_scale,
        {name: np.asarray(params[name]) for name in ("query", "key", "value", "output")},
        _biases(params, "query", "key", "value", "output"),
        attention.rotary,
    )


@plain_heads.register
def _(attention: Grouped, params: Params) -> PlainHeads:
    norms = {"query": attention.query_norm, "key": attention.key_norm}
    return PlainHeads(
        attention.ids,
        attention.groups,
        attention.logit_scale,
        {name: np.asarray(params[name]) for name in ("query", "key", "value", "output")},
        _biases(params, "query", "key", "value", "output"),
        attention.rotary,
        attention.query_norm,
        attention.key_norm,
        {name: np.asarray(params[f"{name}_norm"]["scale"]) for name, norm in norms.items() if norm is not None},
    )


@plain_heads.register
def _(attention: Collaborative, params: Params) -> PlainHeads:
    """q_h = (x W_Q + b_Q) diag(m_h), k_h = y W_K + b_K."""
    mixing = np.asarray(params["mixing"])
    mixed = [np.diag(mixing[head]) for head in range(attention.num_heads)]
    return _shared_key(attention, params, mixed)


@plain_heads.register
def _(attention: Tucker, params: Params) -> PlainHeads:
    """q_h = (x W_Q + b_Q) M_h, k_h = y W_K + b_K."""
    return _shared_key(attention, params, list(np.asarray(params["mixing"])))


def _shared_key(attention: SharedKey, params: Params, mixing: Sequence[np.ndarray]) -> PlainHeads:
    """Drop dimensions of the key that a head's mixing never reads; a head's content bias is one dimension more."""
    query, key = np.asarray(params["query"]), np.asarray(params["key"])
    query_bias = np.asarray(params.get("query_bias", np.zeros(query.shape[1], query.dtype)))
    key_bias = np.asarray(params.get("key_bias", np.zeros(key.shape[1], key.dtype)))
    heads = []
    for head, mixed in enumerate(mixing):
        used = np.flatnonzero(np.any(mixed != 0, axis=0))
        parts = [_product(query, mixed[:, used]), key[:, used], _product(query_bias[None], mixed[:, used])[0]]
        parts.append(key_bias[used])
        if attention.content_bias:
            content = np.asarray(params["content_bias"])[:, head : head + 1]
            added = [np.zeros_like(query[:, :1]), content, np.ones_like(query_bias[:1]), np.zeros_like(key_bias[:1])]
            parts = [np.concatenate(pair, axis=-1) for pair in zip(parts, added, strict=True)]
        heads.append(parts)
    size = max(parts[0].shape[-1] for parts in heads)
    stacked = [np.stack([_widen(part, size) for part in column], axis=-2) for column in zip(*heads, strict=True)]
    biases = _biases(params, "value", "output")
    if attention.projection_bias or attention.content_bias:
        biases |= {"query": stacked[2], "key": stacked[3]}
    weights = {"query": stacked[0], "key": stacked[1], "value": params["value"], "output": params["output"]}
    return PlainHeads(
        attention.ids,
        tuple(range(attention.num_heads)),
        attention.head_dim**-0.5,
        {name: np.asarray(array) for name, array in weights.items()},
        biases,
    )


@plain_heads.register
def _(attention: Latent, params: Params) -> PlainHeads:
    """k_h = y (W_C W_UK^h), v_h = y (W_C W_UV^h) + b_V^h, q_h = x (W_Z W_Q^h) + b_Q^h."""
    for field in ("latent_norm", "query_norm", "rotary"):
        if getattr(attention, field) is not None:
            raise InexpressibleError(f"latent attention with a {field} is no multi-head attention with other weights")
    latent, query = np.asarray(params["latent"]), np.asarray(params["query"])
    if attention.query_rank is not None:
        query = _product(np.asarray(params["query_latent"]), query)
    return PlainHeads(
        attention.ids,
        tuple(range(attention.num_heads)),
        attention.logit_scale,
        {
            "query": query,
            "key": _product(latent, np.asarray(params["key"])),
            "value": _product(latent, np.asarray(params["value"])),
            "output": np.asarray(params["output"]),
        },
        _biases(params, "query", "value", "output"),
    )


@plain_heads.register
def _(attention: Compressed, params: Params) -> PlainHeads:
    """Return the heads inside with W_C W_K^g and W_C W_V^g for keys and values."""
    inner = plain_heads(attention.inner, params["inner"])
    latent = np.asarray(params["latent"])
    rebuilt = {name: _product(latent, inner.weights[name]) for name in ("key", "value")}
    return dataclasses.replace(inner, weights=inner.weights | rebuilt)


@plain_heads.register
def _(attention: SharedRotary, params: Params) -> PlainHeads:
    """Return the heads inside with the components multiplied out for their keys."""
    if attention.inner.key_norm is not None:
        raise InexpressibleError("shared components of normalised keys are no grouped attention with other weights")
    return plain_heads(attention.inner, attention.as_grouped(params))


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the product of `[a, b]` and `[b, ...]`, rounded once."""
    exact = np.tensordot(left.astype(np.float64), right.astype(np.float64), axes=1)
    return exact.astype(np.result_type(left, right))


def _widen(array: np.ndarray, size: int) -> np.ndarray:
    """Return the array with its last dimension filled up with zeros to a size."""
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, size - array.shape[-1])])


def _biases(params: Params, *names: str) -> dict[str, np.ndarray]:
    """Return those of the biases that the layer has."""
    return {name: np.asarray(params[f"{name}_bias"]) for name in names if f"{name}_bias" in params}


def pad_heads(model: Model, family: Family) -> Model:
    """Return a model of the same function with a family's own attention, as many heads in every layer.

    Each head takes the place of its original number. Removed heads have zero output weights, so that they add nothing;
    dimensions that heads lack are zero. A scale that the family cannot write goes into the query weights.

    Args:
        model: the model.
        family: says which shapes there are.

    Raises:
        InexpressibleError: a formulation is not multi-head attention, or the heads fit no shape of the family.
    """
    width, attentions = model.config.width, model.config.attentions()
    plain: dict[tuple[str, int], PlainHeads] = {}

    for stack, layer, attention, params in attention_layers(model):
        try:
            plain[stack, layer] = plain_heads(attention, params)
        except InexpressibleError as error:
            raise InexpressibleError(f"{stack} layer {layer}: {error}") from None
    targets: dict[tuple[str, int], Attention] = {}
    for group in family.head_groups:
        layers = [entry for (stack, _), entry in plain.items() if stack in group]
        found = (attention for stack in group for attention in attentions.get(stack, ()))
        like = inside(max(found, key=lambda attention: min(attention.num_heads, 1)))
        least = [_bias_heads(model, stack) for stack in group]
        count = max([max(entry.ids, default=0) + 1 for entry in layers] + least)
        size = max((entry.size for entry in layers if entry.ids), default=1)
        shape = family.head_shape(count, size, width)
        if shape is None:
            raise InexpressibleError(
                f"{', '.join(group)}: {count} heads of size {size} fit no {family.model_type} of width {width}, "
                "where heads times size is the width"
            )
        target = family.standard(shape, like)
        if isinstance(target, Grouped):
            shape = shape._replace(kv_heads=_kv_heads(shape.num_heads, layers))
        for stack in group:
            turning = [family.standard(shape, own) for own in _alike(model, stack, like)]
            target = family.standard(shape, like)
            targets |= {
                (stack, layer): _turned(target, other, plain.get((stack, layer))) for layer, other in enumerate(turning)
            }

    dtype = np.dtype(jnp.result_type(*(array.dtype for array in flatten(model.params).values())))

    def fill(stack: str, layer: int, attention: Attention, params: Params) -> tuple[Attention, Params]:
        try:
            target = targets[stack, layer]
            return target, _fill(plain[stack, layer], target, width, dtype)
        except InexpressibleError as error:
            raise InexpressibleError(f"{stack} layer {layer}: {error}") from None

    return map_attention(model, fill)


def inside(attention: Attention) -> Attention:
    """Return the formulation inside one around it, which has its biases, its rotation and its norms."""
    return inside(attention.inner) if isinstance(attention, Wrapping) else attention


def _turned(target: Attention, other: Attention, plain: PlainHeads | None) -> Attention:
    """Return the target with the rotary positions of its heads, or those of another one, whose scale it has."""
    if not isinstance(target, MultiHead | Grouped) or not isinstance(other, MultiHead | Grouped):
        return target
    rotary = plain.rotary if plain is not None and plain.ids else other.rotary
    return dataclasses.replace(target, rotary=rotary, scale=other.scale)


def _alike(model: Model, head_stack: str, like: Attention) -> list[Attention]:
    """Return for each layer the attention whose rotary positions its padded form has.

    It is the layer's own where that is of the common kind. A layer that lost its heads resembles one with the same
    window, and any other layer `like`.
    """
    attentions = [inside(attention) for attention in model.config.attentions().get(head_stack, ())]
    layers = model.config.stacks()[HEAD_STACKS[head_stack][0]].layers if attentions else ()
    own = [attention if type(attention) is type(like) else None for attention in attentions]
    by_window: dict[int | None, Attention] = {}
    for layer, attention in zip(layers, own, strict=True):
        if attention is not None:
            by_window.setdefault(layer.window, attention)
    return [
        attention or (by_window.get(layer.window, like) if isinstance(old, NoHeads) else like)
        for layer, attention, old in zip(layers, own, attentions, strict=True)
    ]


def _fill(plain: PlainHeads, target: Attention, width: int, dtype: np.dtype) -> Params:
    """Return the target's parameters with these heads in their places and zeros elsewhere."""
    if not isinstance(target, MultiHead | Grouped):
        raise InexpressibleError(f"cannot fill {type(target).__name__}")
    declared = target.tensors(width, width)
    filled = {name: np.zeros(tensor.shape, dtype) for name, tensor in flatten(declared).items()}
    lost = [name for name, bias in plain.biases.items() if f"{name}_bias" not in filled and np.any(bias)]
    if lost:
        raise InexpressibleError(f"there is no place for its {lost[0]} bias")
    if "output" in plain.biases and "output_bias" in filled:
        filled["output_bias"][...] = plain.biases["output"]
    if isinstance(target, Grouped):
        for name, norm in (("query", target.query_norm), ("key", target.key_norm)):
            if norm is not None:
                filled[f"{name}_norm/scale"][...] = plain.norms.get(name, np.ones(target.head_dim))
    if plain.ids:
        _check_turning(plain, target)
        _place(filled, plain, target)
    return nested(filled)


def _place(filled: dict[str, np.ndarray], plain: PlainHeads, target: MultiHead | Grouped) -> None:
    """Write the heads' weights into the arrays of the target."""
    own = np.asarray(plain.ids)
    kept = getattr(target, "kv_heads", target.num_heads)
    read = own * kept // target.num_heads
    for name in ("query", "key", "value"):
        weight, bias = plain.weights[name], plain.biases.get(name)
        source = np.arange(len(own)) if name == "query" else np.asarray(plain.reads)
        there = own if name == "query" else read
        size = weight.shape[-1]
        filled[name][:, there, :size] = weight[:, source]
        if bias is not None and f"{name}_bias" in filled:
            filled[f"{name}_bias"][there, :size] = bias[source]
    output = plain.weights["output"]
    filled["output"][own, : output.shape[1]] = output
    factor = plain.scale / target.logit_scale
    if factor != 1.0 and plain.query_norm is not None:
        weight = filled["query_norm/scale"]
        filled["query_norm/scale"] = np.asarray(
            plain.query_norm.scaled({"scale": weight}, factor)["scale"], weight.dtype
        )
    elif factor != 1.0:
        for name in ("query", "query_bias"):
            if name in filled:
                filled[name] = (filled[name] * factor).astype(filled[name].dtype)


def _check_turning(plain: PlainHeads, target: MultiHead | Grouped) -> None:
    """Raise unless the heads turn and are normalised as the target's, and are as large: neither can be widened."""
    if plain.rotary != target.rotary:
        raise InexpressibleError("its rotary positions are not those of the other layers")
    norms = (target.query_norm, target.key_norm) if isinstance(target, Grouped) else (None, None)
    if (plain.query_norm, plain.key_norm) != norms:
        raise InexpressibleError("its norms of queries and keys are not those of the other layers")
    size = plain.weights["query"].shape[-1]
    if size != target.head_dim and (plain.rotary is not None or plain.norms):
        raise InexpressibleError(f"heads of size {size} that turn cannot be widened to {target.head_dim}")


def _kv_heads(num_heads: int, layers: list[PlainHeads]) -> int:
    """Return the fewest key and value heads that equal groups of consecutive heads can share."""
    for count in range(1, num_heads):
        if num_heads % count == 0 and all(_agrees(entry, num_heads, count) for entry in layers):
            return count
    return num_heads


def _agrees(plain: PlainHeads, num_heads: int, count: int) -> bool:
    """Return whether the heads of each of `count` groups read the same key and value head."""
    read: dict[int, int] = {}
    return all(
        read.setdefault(head * count // num_heads, reads) == reads
        for head, reads in zip(plain.ids, plain.reads, strict=True)
    )


def _bias_heads(model: Model, head_stack: str) -> int:
    """Return the number of heads that the position bias of a head stack's self-attention has."""
    name, slot = HEAD_STACKS[head_stack]
    stack = model.config.stacks().get(name)
    if stack is None or slot != "attention" or stack.position_bias is None:
        return 0
    return stack.position_bias.num_heads
