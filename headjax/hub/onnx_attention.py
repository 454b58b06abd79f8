"""Attention in ONNX: onnxruntime's `MultiHeadAttention` wherever that computes the formulation, else its logits."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from headjax.core.serialize import kind_of
from headjax.hub.onnx_nodes import BOOL, FLOAT, INT32, MICROSOFT, Graph
from headjax.hub.table import InexpressibleError
from headjax.nn.collaborative import CollaborativeAttention
from headjax.nn.latent import CompressedAttention, LatentAttention
from headjax.nn.module import NoHeadsAttention
from headjax.nn.multi_head import GroupedAttention
from headjax.nn.rotary import Rotary, RotaryHalves

MASKED = float(np.finfo(np.float32).min)


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens that a stack attends to; what is None does not exist."""

    present: str | None = None  # [batch, length] int64, 0 at padding
    positions: str | None = None  # [batch or 1, length] int64
    allowed: str | None = None  # [batch or 1, 1, query, key] bool
    bias: str | None = None  # [1, heads, query, key], added to the logits
    softcap: float | None = None


@functools.singledispatch
def attention(module: Any, graph: Graph, x: str, memory: str, tokens: Tokens) -> str:
    """Return the outputs of an attention module `[batch, query, width]`, from queries x and the tokens attended to."""
    raise InexpressibleError(f"layout onnx: has no attention of the kind {kind_of(module)}")


@attention.register
def _(module: NoHeadsAttention, graph: Graph, x: str, memory: str, tokens: Tokens) -> str:
    return graph.nothing(x, module.output.bias)


@attention.register
def _(module: GroupedAttention, graph: Graph, x: str, memory: str, tokens: Tokens) -> str:
    query = graph.linear(x, module.query[...], module.query_bias, "query")
    key = graph.linear(memory, module.key[...], module.key_bias, "key")
    value = graph.linear(memory, module.value[...], module.value_bias, "value")
    frequencies = module.kind.options.get("frequencies")
    query, key = (
        _placed(graph, each, kernel.shape[1:], norm, module.rotary, tokens, frequencies)
        for each, kernel, norm in ((query, module.query, module.query_norm), (key, module.key, module.key_norm))
    )
    if module.groups != tuple(range(module.num_heads)):
        key, value = (
            graph.op("Gather", graph.reshape(each, 0, 0, module.kv_heads, -1), module.groups, axis=2)
            for each in (key, value)
        )
        key, value = (graph.reshape(each, 0, 0, -1) for each in (key, value))
    return _combined(graph, module, query, key, value, tokens, module.scale)


@attention.register
def _(module: LatentAttention, graph: Graph, x: str, memory: str, tokens: Tokens) -> str:
    if module.rotary is not None:
        raise InexpressibleError("layout onnx: has no latent attention with rotary keys")
    latent = graph.linear(memory, module.latent[...])
    latent = graph.norm(module.latent_norm, latent)
    inputs = x if module.query_latent is None else graph.linear(x, module.query_latent[...])
    inputs = graph.norm(module.query_norm, inputs)
    query = graph.linear(inputs, module.query[...], module.query_bias, "query")
    key = graph.linear(latent, module.key[...], None, "key")
    value = graph.linear(latent, module.value[...], module.value_bias, "value")
    return _combined(graph, module, query, key, value, tokens, module.scale)


@attention.register
def _(module: CompressedAttention, graph: Graph, x: str, memory: str, tokens: Tokens) -> str:
    return attention(module.inner, graph, x, graph.linear(memory, module.latent[...]), tokens)


@attention.register
def _(module: CollaborativeAttention, graph: Graph, x: str, memory: str, tokens: Tokens) -> str:
    heads, scale = module.num_heads, 1.0 / math.sqrt(module.kind.head_dim)
    query = graph.linear(x, module.query[...], module.query_bias, "query")  # [batch, query, shared_dim]
    mixing = np.asarray(module.mixing[...])[:, None]  # [heads, 1, shared_dim]
    query = graph.op("Mul", graph.unsqueeze(query, 1), scale * mixing)
    key = graph.op("Transpose", graph.linear(memory, module.key[...], module.key_bias, "key"), perm=[0, 2, 1])
    logits = graph.op("MatMul", query, graph.unsqueeze(key, 1))
    if module.content_bias is not None:
        content = graph.op("Transpose", graph.linear(memory, scale * module.content_bias[...]), perm=[0, 2, 1])
        logits = graph.op("Add", logits, graph.unsqueeze(content, 2))
    value = graph.linear(memory, module.value[...], module.value_bias, "value")
    return _from_logits(graph, module, logits, graph.reshape(value, 0, 0, heads, -1), tokens)


def _placed(
    graph: Graph, x: str, sizes: Sequence[int], norm: Any, rotary: Rotary | None, tokens: Tokens, frequencies: Any
) -> str:
    """Return queries or keys `[batch, length, heads * head_dim]`, normalised by head and rotated to their positions."""
    if norm is None and rotary is None:
        return x
    x = graph.norm(norm, graph.reshape(x, 0, 0, *sizes))
    x = x if rotary is None else _rotated(graph, x, rotary, tokens, sizes[1], frequencies)
    return graph.reshape(x, 0, 0, math.prod(sizes))


def _rotated(graph: Graph, x: str, rotary: Rotary, tokens: Tokens, size: int, frequencies: Any) -> str:
    """Return `[batch, length, heads, head_dim]` turned at the tokens' positions, see `Rotary`."""
    dim = rotary.dim or size
    rates = np.asarray(rotary.angles(jnp.ones((1, 1)), dim))[0, 0]  # an angle is its position times a rate
    rates = rates[None] if frequencies is None else rates[np.asarray(frequencies)]  # [heads or 1, dim / 2]
    turning = 2 * rates.shape[-1]
    at = graph.unsqueeze(graph.op("Cast", tokens.positions or "", to=FLOAT), 2, 3)
    angles = graph.op("Mul", at, rates)  # [batch or 1, length, heads or 1, dim / 2]
    cos, sin = graph.op("Cos", angles), graph.op("Sin", angles)
    halves = isinstance(rotary, RotaryHalves)

    def part(start: int, stop: int, step: int = 1) -> str:
        return graph.op("Slice", x, [start], [stop], [3], [step])

    pairs = ((0, turning // 2), (turning // 2, turning)) if halves else ((0, turning, 2), (1, turning, 2))
    first, second = (part(*each) for each in pairs)
    turned = [
        graph.op("Sub", graph.op("Mul", first, cos), graph.op("Mul", second, sin)),
        graph.op("Add", graph.op("Mul", first, sin), graph.op("Mul", second, cos)),
    ]
    if not halves:
        each = [graph.unsqueeze(one, 4) for one in turned]
        turned = [graph.reshape(graph.op("Concat", *each, axis=4), 0, 0, 0, turning)]
    still = [part(turning, size)] if turning < size else []
    return graph.op("Concat", *turned, *still, axis=3)


def _combined(graph: Graph, module: Any, query: str, key: str, value: str, tokens: Tokens, scale: float) -> str:
    """Return the outputs of heads with queries, keys and values of their own, `[batch, length, heads * size]` each."""
    heads = module.num_heads
    if tokens.softcap is None:
        return graph.linear(_fused(graph, heads, query, key, value, tokens, scale), *_output(module))
    query, key, value = (graph.reshape(each, 0, 0, heads, -1) for each in (query, key, value))
    query = graph.heads_first(graph.times(query, scale))
    logits = graph.op("MatMul", query, graph.op("Transpose", key, perm=[0, 2, 3, 1]))
    return _from_logits(graph, module, logits, value, tokens)


def _fused(graph: Graph, heads: int, query: str, key: str, value: str, tokens: Tokens, scale: float) -> str:
    """Return the contexts `[batch, query, heads * value_dim]` by onnxruntime's operator."""
    present, bias = "", tokens.bias or ""
    if tokens.allowed is not None:  # together with padding, so that a query that sees nothing sees all alike, as here
        hidden = graph.op("Where", _visible(graph, tokens), 0.0, MASKED)
        bias = graph.op("Add", bias, hidden) if bias else hidden
    elif tokens.present is not None:
        present = graph.op("Cast", tokens.present, to=INT32)
    inputs = (query, key, value, "", present, bias)
    options: dict[str, Any] = {"num_heads": heads, "scale": float(scale), "mask_filter_value": MASKED}
    return graph.op("MultiHeadAttention", *inputs, domain=MICROSOFT, **options)


def _from_logits(graph: Graph, module: Any, logits: str, value: str, tokens: Tokens) -> str:
    """Return the outputs of heads from logits `[batch, heads, query, key]` and values `[batch, key, heads, size]`."""
    if tokens.bias is not None:
        logits = graph.op("Add", logits, tokens.bias)
    if tokens.softcap is not None:
        logits = graph.capped(logits, tokens.softcap)
    if tokens.allowed is not None or tokens.present is not None:
        logits = graph.op("Where", _visible(graph, tokens), logits, MASKED)
    weights = graph.op("Softmax", logits, axis=-1)
    context = graph.op("MatMul", weights, graph.heads_first(value))
    context = graph.reshape(graph.heads_first(context), 0, 0, -1)
    return graph.linear(context, *_output(module))


def _visible(graph: Graph, tokens: Tokens) -> str:
    """Return which keys a query sees, `[batch or 1, 1, query or 1, key]` bool; some are masked."""
    if tokens.present is None:
        return tokens.allowed or ""
    keys = graph.op("Cast", tokens.present, to=BOOL)
    keys = graph.unsqueeze(keys, 1, 2)
    return keys if tokens.allowed is None else graph.op("And", keys, tokens.allowed)


def _output(module: Any) -> tuple[Any, Any, str]:
    """Return W_O `[heads * value_dim, width]` and b_O."""
    kernel, bias = module.output.kernel[...], module.output.bias
    return kernel.reshape(-1, kernel.shape[-1]), None if bias is None else bias[...], "output"
