"""Layers of ONNX graphs: norms, feed-forwards, attention, and their products with weights in float32 or int8.

Products are plain `MatMul`s on initializers, which quantisers and the fusions of runtimes look for.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.core.serialize import kind_of
from headjax.hub.table import InexpressibleError
from headjax.nn.block import Block
from headjax.nn.collaborative import CollaborativeAttention
from headjax.nn.latent import CompressedAttention, LatentAttention
from headjax.nn.module import NoHeadsAttention
from headjax.nn.multi_head import GroupedAttention
from headjax.nn.norms import BEFORE, LayerNorm, Normalisation, Residual
from headjax.nn.projections import FeedForward
from headjax.nn.rotary import RotaryInterleaved

FLOAT, INT32, INT64, BOOL = 1, 6, 7, 9  # numbers of ONNX's `DataType`
MASKED = float(np.finfo(np.float32).min)
SMALL = 4096  # numbers of a constant that is shared, so that runtimes see equal nodes

MICROSOFT = "com.microsoft"
"""Domain of onnxruntime's own operators."""

_MICROSOFTS = ("MultiHeadAttention", "RotaryEmbedding")

Matrix = tuple[str, str | None]
"""A matrix and, where it is of int8, the scales of its numbers."""


@functools.cache
def libraries() -> tuple[Any, Any]:
    """Return onnx and onnxruntime."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        raise HeadjaxError("layout onnx: needs onnx and onnxruntime; pip install 'headjax[onnx]'") from None
    return onnx, onnxruntime


class Graph:
    """An ONNX graph under construction, whose tensors are referred to by name.

    With `bits`, products with weights are computed in int8. The weights are integers of that many bits, with one scale
    for each output channel; the inputs are rounded when the product is computed, by the range of their values at that
    time. The token embeddings are integers with one scale for each token.
    """

    def __init__(self, bits: int = 0) -> None:
        self.bits = bits
        self.nodes: list[Any] = []
        self.outputs: list[str] = []
        self.initializers: dict[str, np.ndarray] = {}
        self.token: Matrix = "", None  # the embeddings
        self._names: dict[Any, str] = {}  # of small constants, and of inputs in int8
        self._numbers = itertools.count()

    def op(self, kind: str, *inputs: Any, name: str = "", more: Sequence[str] = (), **attributes: Any) -> str:
        """Add a node; return the name of its output. `more` outputs have that name and an ending.

        Inputs are names, or numbers, which become constants.
        """
        output = name or f"{kind}_{next(self._numbers)}"
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        outputs = [output, *(output + end for end in more)]
        domain = MICROSOFT if kind in _MICROSOFTS else ""
        make_node = libraries()[0].helper.make_node
        self.nodes.append(make_node(kind, names, outputs, name=output, domain=domain, **attributes))
        return output

    def constant(self, value: Any, name: str = "constant", dtype: Any = None) -> str:
        """Add an initializer, of int64 or float32 unless it has another type; equal small ones are one."""
        array = np.asarray(value)
        dtype = dtype or (np.int64 if np.issubdtype(array.dtype, np.integer) else np.float32)
        array = array.astype(dtype, copy=False)
        key = f"{name}_{next(self._numbers)}"
        if array.size <= SMALL:
            key = self._names.setdefault((array.dtype, array.shape, array.tobytes()), key)
        self.initializers.setdefault(key, array)
        return key

    def linear(self, x: str, kernel: Any, bias: Any = None, name: str = "weight", *, by_row: bool = False) -> str:
        """Return x W + b of a kernel `[inputs, ...]`, whose other axes become one.

        In int8, `by_row` quantises each token by its own range, not all by one: behind an activation, the inputs of a
        few tokens are tens of times as large as those of the others.
        """
        matrix = self.matrix(np.asarray(kernel, np.float32).reshape(kernel.shape[0], -1), name, axis=0)
        if by_row and self.bits:
            most = self.op("Max", self.op("ReduceMax", self.op("Abs", x), [-1], keepdims=1), 1e-6)
            product = self.op("Mul", self.product(self.op("Div", x, most), *matrix), most)
        else:
            product = self.product(x, *matrix)
        return product if bias is None else self.op("Add", product, self.constant(np.ravel(bias), f"{name}_bias"))

    def matrix(self, array: np.ndarray, name: str, axis: int) -> Matrix:
        """Add a matrix as it is, or in int8 with one scale for all numbers along an axis."""
        if not self.bits:
            return self.constant(array, name), None
        scale = np.maximum(np.abs(array).max(axis, keepdims=True), 1e-12) / (2 ** (self.bits - 1) - 1)
        return self.constant(np.rint(array / scale), name, np.int8), self.constant(scale, f"{name}_scale")

    def rows(self, matrix: str, scale: str | None, index: str) -> str:
        rows = self.op("Gather", matrix, index)
        if scale is None:
            return rows
        return self.op("Mul", self.op("Cast", rows, to=FLOAT), self.op("Gather", scale, index))

    def product(self, x: str, matrix: str, scale: str | None) -> str:
        if scale is None:
            return self.op("MatMul", x, matrix)
        if x not in self._names:
            self._names[x] = self.op("DynamicQuantizeLinear", x, more=(".scale", ".zero"))
        codes = self._names[x]
        product = self.op("Cast", self.op("MatMulInteger", codes, matrix, f"{codes}.zero"), to=FLOAT)
        return self.op("Mul", product, self.op("Mul", f"{codes}.scale", scale))

    def indices(self, x: str = "input_ids", first: int = 0) -> str:
        """Return the numbers from `first` to length - 1 as `[1, numbers]`, of a tensor `[batch, length, ...]`."""
        length = self.op("Squeeze", self.op("Shape", x, start=1, end=2), [0])
        return self.unsqueeze(self.op("Range", first, length, 1), 0)

    def distances(self) -> str:
        """Return key index - query index, `[query, key]`."""
        keys = self.indices()
        return self.op("Sub", keys, self.transpose(keys, 1, 0))

    def reshape(self, x: str, *shape: int) -> str:
        """Reshape; 0 keeps an axis."""
        return self.op("Reshape", x, shape)

    def unsqueeze(self, x: str, *axes: int) -> str:
        return self.op("Unsqueeze", x, axes)

    def transpose(self, x: str, *axes: int) -> str:
        return self.op("Transpose", x, perm=axes)

    def nothing(self, x: str, bias: Any) -> str:
        """Return the output of a sub-layer without heads or units: its bias, or zeros."""
        zeros = self.op("Mul", x, 0.0)
        return zeros if bias is None else self.op("Add", zeros, bias)

    def times(self, x: str, factor: Any) -> str:
        """Multiply by a constant, unless it is 1."""
        return x if np.ndim(factor) == 0 and float(factor) == 1.0 else self.op("Mul", x, factor)

    def capped(self, logits: str, cap: float | None) -> str:
        """Return c * tanh(logits / c), or the logits without a cap."""
        return logits if cap is None else self.times(self.op("Tanh", self.times(logits, 1.0 / cap)), cap)

    def norm(self, module: Normalisation | None, x: str) -> str:
        """Normalise over the last axis, where there is a norm."""
        if module is None:
            return x
        gain, epsilon = self.constant(module.gain(), "scale"), module.config.epsilon
        if isinstance(module.config, LayerNorm):
            bias = () if module.bias is None else (self.constant(module.bias, "scale_bias"),)
            return self.op("LayerNormalization", x, gain, *bias, axis=-1, epsilon=epsilon)
        squares = self.op("ReduceMean", self.op("Mul", x, x), [-1], keepdims=1)
        return self.op("Mul", self.op("Div", x, self.op("Sqrt", self.op("Add", squares, float(epsilon)))), gain)

    def activation(self, name: str, x: str) -> str:
        """Apply an activation of `headjax.nn.projections.ACTIVATIONS`."""
        if name in ("gelu", "gelu_tanh"):
            return self.op("Gelu", x, approximate="tanh" if name == "gelu_tanh" else "none")
        if name in ("silu", "quick_gelu"):
            return self.op("Mul", x, self.op("Sigmoid", self.times(x, 1.702 if name == "quick_gelu" else 1.0)))
        return self.op({"relu": "Relu", "tanh": "Tanh"}[name], x)


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens that a layer attends to; what is None does not exist."""

    positions: str  # [batch or 1, length] int64
    mask: str | None = None  # [batch, length] int64, 0 at padding
    allowed: str | None = None  # [batch or 1, 1, query, key] bool
    bias: str | None = None  # [1, heads, query, key], added to the logits
    softcap: float | None = None


def stack(graph: Graph, stack: Any, x: str, tokens: Tokens) -> str:
    """Return the output of a stack's layers, normalised if it has a final norm.

    A layer sees the tokens through its window, with the position bias of the heads that it has.
    """
    for config, layer in zip(stack.config.layers, stack.layers(), strict=True):
        bias, allowed = tokens.bias, tokens.allowed
        if bias is not None and config.attention.ids != tuple(range(stack.position_bias.config.num_heads)):
            bias = graph.op("Gather", bias, np.asarray(config.attention.ids, np.int64), axis=1)
        if config.window is not None:
            near = graph.unsqueeze(graph.op("Less", graph.op("Abs", graph.distances()), config.window), 0, 1)
            allowed = near if allowed is None else graph.op("And", allowed, near)
        x = _layer(graph, layer, x, dataclasses.replace(tokens, bias=bias, allowed=allowed))
    return graph.norm(stack.final_norm, x)


def _layer(graph: Graph, layer: Block, x: str, tokens: Tokens) -> str:
    """Return the stream after a layer, see `Residual`."""
    entered = x
    for slot in layer.slots:
        module: Any = getattr(layer, slot)
        residual: Residual = getattr(layer, f"{slot}_residual")
        before = residual.kind in BEFORE
        inputs = graph.norm(residual.norm if before else None, entered if residual.kind == "parallel_norm" else x)
        if slot == "feed_forward":
            outputs = _feed_forward(graph, module, inputs)
        else:
            outputs = _attention(graph, module, inputs, inputs, tokens)
        if residual.after is not None:
            x = graph.op("Add", x, graph.norm(residual.after, outputs))
            continue
        shortcut, branch = residual.factors()
        x = graph.op("Add", graph.times(x, np.asarray(shortcut)), graph.times(outputs, np.asarray(branch)))
        x = graph.norm(None if before else residual.norm, x)
    return x


def _feed_forward(graph: Graph, module: FeedForward, x: str) -> str:
    """Return phi(x W_1 + b_1) W_2 + b_2, see `FeedForward`."""
    if module.hidden == 0:
        return graph.nothing(x, module.down_bias)
    inner = graph.linear(x, module.up, module.up_bias, "up")
    if module.gate is None:
        inner = graph.activation(module.activation, inner)
    else:
        gate = graph.linear(x, module.gate, module.gate_bias, "gate")
        inner = graph.op("Mul", graph.activation(module.activation, gate), inner)
    return graph.linear(inner, module.down, module.down_bias, "down", by_row=True)


def _attention(graph: Graph, module: Any, x: str, memory: str, tokens: Tokens) -> str:
    """Return the outputs `[batch, query, width]` of an attention with queries from x, keys and values from memory."""
    if isinstance(module, NoHeadsAttention):
        return graph.nothing(x, module.output.bias)
    if isinstance(module, CompressedAttention):
        return _attention(graph, module.inner, x, graph.linear(memory, module.latent), tokens)
    if isinstance(module, CollaborativeAttention):
        context = _collaborative(graph, module, x, memory, tokens)
    elif isinstance(module, GroupedAttention):
        query = graph.linear(x, module.query, module.query_bias, "query")
        key = graph.linear(memory, module.key, module.key_bias, "key")
        value = graph.linear(memory, module.value, module.value_bias, "value")
        query = _rotated(graph, query, module, module.num_heads, module.query_norm, tokens)
        key = _rotated(graph, key, module, module.kv_heads, module.key_norm, tokens)
        if module.groups != tuple(range(module.num_heads)):
            by_head = (graph.reshape(each, 0, 0, module.kv_heads, -1) for each in (key, value))
            key, value = (graph.reshape(graph.op("Gather", each, module.groups, axis=2), 0, 0, -1) for each in by_head)
        context = _contexts(graph, module, query, key, value, tokens)
    elif isinstance(module, LatentAttention) and module.rotary is None:
        latent = graph.norm(module.latent_norm, graph.linear(memory, module.latent))
        x = graph.norm(module.query_norm, x if module.query_latent is None else graph.linear(x, module.query_latent))
        query = graph.linear(x, module.query, module.query_bias, "query")
        key = graph.linear(latent, module.key, None, "key")
        value = graph.linear(latent, module.value, module.value_bias, "value")
        context = _contexts(graph, module, query, key, value, tokens)
    else:
        rotary = " with rotary keys" if isinstance(module, LatentAttention) else ""
        raise InexpressibleError(f"layout onnx: has no attention of the kind {kind_of(module)}{rotary}")
    kernel = np.asarray(module.output.kernel[...])  # [heads, value_dim, width]
    return graph.linear(context, kernel.reshape(-1, kernel.shape[-1]), module.output.bias, "output")


def _rotated(graph: Graph, x: str, module: GroupedAttention, heads: int, norm: Any, tokens: Tokens) -> str:
    """Return queries or keys `[batch, length, heads * head_dim]`, normalised by head and rotated to their positions.

    onnxruntime turns all heads alike, by a table of angles. Where heads have frequencies of their own, each head of a
    token counts as a token, whose row of the table has the angles of that head.
    """
    rotary, size, frequencies = module.rotary, module.query.shape[-1], module.kind.options.get("frequencies")
    if norm is not None:
        x = graph.reshape(graph.norm(norm, graph.reshape(x, 0, 0, heads, size)), 0, 0, heads * size)
    if rotary is None:
        return x
    rates = np.asarray(rotary.angles(jnp.ones((1, 1)), size))[0, 0]  # radians a position, [pairs]
    rates = rates[None] if frequencies is None else rates[np.asarray(frequencies)]  # [1 or heads, pairs]
    kinds, pairs = rates.shape
    # A table from position -1 on, which is that of padding in RoBERTa, and one row of it for each kind of head.
    from_minus_1 = graph.reshape(graph.op("Cast", graph.indices(x, first=-1), to=FLOAT), -1, 1, 1)
    angles = graph.reshape(graph.op("Mul", from_minus_1, rates), -1, pairs)
    positions = graph.op("Expand", tokens.positions, graph.op("Shape", x, end=2))
    row = graph.op("Mul", graph.unsqueeze(graph.op("Add", positions, 1), 2), kinds)
    rows = graph.reshape(graph.op("Add", row, np.arange(kinds)), 0, -1)
    cos_and_sin = graph.op("Cos", angles), graph.op("Sin", angles)
    options: dict[str, Any] = {"num_heads": heads // kinds, "rotary_embedding_dim": 2 * pairs}
    options["interleaved"] = int(isinstance(rotary, RotaryInterleaved))
    x = graph.reshape(x, 0, -1, heads // kinds * size)
    x = graph.op("RotaryEmbedding", x, rows, *cos_and_sin, **options)
    return graph.reshape(x, 0, -1, heads * size)


def _contexts(graph: Graph, module: Any, query: str, key: str, value: str, tokens: Tokens) -> str:
    """Return the contexts of heads with queries, keys and values of their own, `[batch, length, heads * size]` each."""
    heads, scale, mask, bias = module.num_heads, float(module.scale), "", tokens.bias or ""
    if tokens.softcap is not None:
        query, key = (graph.reshape(each, 0, 0, heads, -1) for each in (graph.times(query, scale), key))
        logits = graph.op("MatMul", graph.transpose(query, 0, 2, 1, 3), graph.transpose(key, 0, 2, 3, 1))
        return _of_logits(graph, module, logits, value, tokens)
    if tokens.allowed is not None:  # together with padding, so that a query that sees nothing sees all alike, as here
        hidden = graph.op("Where", _visible(graph, tokens), 0.0, MASKED)
        bias = graph.op("Add", bias, hidden) if bias else hidden
    elif tokens.mask is not None:
        mask = graph.op("Cast", tokens.mask, to=INT32)
    options: dict[str, Any] = {"num_heads": heads, "scale": scale, "mask_filter_value": MASKED}
    return graph.op("MultiHeadAttention", query, key, value, "", mask, bias, **options)


def _collaborative(graph: Graph, module: CollaborativeAttention, x: str, memory: str, tokens: Tokens) -> str:
    """Return the contexts of heads that share a query and a key, each with its mixing of their dimensions."""
    scale = 1.0 / math.sqrt(module.kind.head_dim)
    query = graph.linear(x, module.query, module.query_bias, "query")  # [batch, query, shared_dim]
    query = graph.op("Mul", graph.unsqueeze(query, 1), scale * np.asarray(module.mixing)[:, None])
    key = graph.transpose(graph.linear(memory, module.key, module.key_bias, "key"), 0, 2, 1)
    logits = graph.op("MatMul", query, graph.unsqueeze(key, 1))
    if module.content_bias is not None:
        content = graph.transpose(graph.linear(memory, scale * np.asarray(module.content_bias[...])), 0, 2, 1)
        logits = graph.op("Add", logits, graph.unsqueeze(content, 2))
    value = graph.linear(memory, module.value, module.value_bias, "value")
    return _of_logits(graph, module, logits, value, tokens)


def _of_logits(graph: Graph, module: Any, logits: str, value: str, tokens: Tokens) -> str:
    """Return the contexts of heads from logits `[batch, heads, query, key]` and values `[batch, key, heads * size]`."""
    if tokens.bias is not None:
        logits = graph.op("Add", logits, tokens.bias)
    logits = graph.capped(logits, tokens.softcap)
    if tokens.allowed is not None or tokens.mask is not None:
        logits = graph.op("Where", _visible(graph, tokens), logits, MASKED)
    value = graph.transpose(graph.reshape(value, 0, 0, module.num_heads, -1), 0, 2, 1, 3)
    context = graph.op("MatMul", graph.op("Softmax", logits, axis=-1), value)
    return graph.reshape(graph.transpose(context, 0, 2, 1, 3), 0, 0, -1)


def _visible(graph: Graph, tokens: Tokens) -> str:
    """Return which keys a query sees, `[batch or 1, 1, query or 1, key]` bool; some are masked."""
    if tokens.mask is None:
        return tokens.allowed or ""
    keys = graph.unsqueeze(graph.op("Cast", tokens.mask, to=BOOL), 1, 2)
    return keys if tokens.allowed is None else graph.op("And", keys, tokens.allowed)
