"""Formulations as plain heads, each with a query, key, value and output of its own, which every family has."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from headjax.attention.collaborative import Collaborative, SharedKey, Tucker
from headjax.attention.formulation import Attention, NoHeads
from headjax.attention.latent import Latent
from headjax.attention.multi_head import Grouped, MultiHead
from headjax.attention.rotary import Rotary
from headjax.core.norms import Norm
from headjax.core.serialize import kind_of
from headjax.core.tensors import Params
from headjax.hub.table import InexpressibleError


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
        norms: `query` and `key`, `[dim]` each.
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
