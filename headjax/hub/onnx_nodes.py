"""Nodes of an ONNX graph: plain `MatMul`s on initializers, which quantisers and the fusions of runtimes look for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from headjax.nn.norms import LayerNorm, Normalisation

FLOAT, INT32, INT64, BOOL = 1, 6, 7, 9  # numbers of ONNX's `DataType`
MICROSOFT = "com.microsoft"  # domain of onnxruntime's own operators
SMALL = 4096  # numbers of a constant that is shared, so that runtimes see equal nodes


class Node(NamedTuple):
    """An operation."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    domain: str
    attributes: dict[str, Any]


class Graph:
    """Nodes and initializers; every tensor goes by its name.

    In a graph with `bits`, products with weights are of int8, and so are the token embeddings: weights of so many bits
    by output channel, inputs by the range of each call.
    """

    def __init__(self, bits: int = 0) -> None:
        self.bits = bits
        self.nodes: list[Node] = []
        self.outputs: list[str] = []
        self.initializers: dict[str, np.ndarray] = {}
        self.token: tuple[str, str | None] = "", None  # the embeddings, coded by row
        self._small: dict[Any, str] = {}
        self._codes: dict[str, str] = {}
        self._numbers = itertools.count()

    def op(self, kind: str, *inputs: Any, domain: str = "", more: Sequence[str] = (), **attributes: Any) -> str:
        """Add a node; return the name of its output. `more` outputs have that name and an ending.

        Inputs are names, or numbers, which become constants.
        """
        output = f"{kind}_{next(self._numbers)}"
        names = tuple(each if isinstance(each, str) else self.constant(each) for each in inputs)
        self.nodes.append(Node(kind, names, (output, *(f"{output}{end}" for end in more)), domain, attributes))
        return output

    def constant(self, value: Any, name: str = "constant", dtype: Any = None) -> str:
        """Add an initializer, of int64 or float32 unless it has another type; equal small ones are one."""
        array = np.asarray(value)
        array = array.astype(dtype or (np.int64 if np.issubdtype(array.dtype, np.integer) else np.float32))
        key = f"{name}_{next(self._numbers)}"
        if array.size <= SMALL:
            key = self._small.setdefault((array.dtype, array.shape, array.tobytes()), key)
        self.initializers.setdefault(key, array)
        return key

    def linear(self, x: str, kernel: Any, bias: Any = None, name: str = "weight", *, by_row: bool = False) -> str:
        """X W + b of a kernel `[inputs, ...]`, whose other axes become one.

        In int8, `by_row` takes a range for every token in place of one for all: few tokens have inputs that are tens of
        times those of the others behind an activation.
        """
        matrix = np.asarray(kernel, np.float32).reshape(kernel.shape[0], -1)
        coded = self.coded(matrix, name, axis=0)
        if by_row and self.bits:
            most = self.op("Max", self.op("ReduceMax", self.op("Abs", x), [-1], keepdims=1), 1e-6)
            product = self.op("Mul", self.product(self.op("Div", x, most), *coded), most)
        else:
            product = self.product(x, *coded)
        return product if bias is None else self.op("Add", product, self.constant(np.ravel(bias), f"{name}_bias"))

    def coded(self, matrix: np.ndarray, name: str, axis: int) -> tuple[str, str | None]:
        """Add a matrix as it is, or in int8 with the scales by which its codes are multiplied, one along an axis."""
        if not self.bits:
            return self.constant(matrix, name), None
        scale = np.maximum(np.abs(matrix).max(axis, keepdims=True), 1e-12) / (2 ** (self.bits - 1) - 1)
        return self.constant(np.rint(matrix / scale), name, np.int8), self.constant(scale, f"{name}_scale")

    def rows(self, matrix: str, scale: str | None, index: str) -> str:
        """Rows of a coded matrix."""
        codes = self.op("Gather", matrix, index)
        if scale is None:
            return codes
        return self.op("Mul", self.op("Cast", codes, to=FLOAT), self.op("Gather", scale, index))

    def product(self, x: str, matrix: str, scale: str | None) -> str:
        """X W of a coded matrix."""
        if scale is None:
            return self.op("MatMul", x, matrix)
        if x not in self._codes:
            self._codes[x] = self.op("DynamicQuantizeLinear", x, more=(".scale", ".zero"))
        codes = self._codes[x]
        product = self.op("Cast", self.op("MatMulInteger", codes, matrix, f"{codes}.zero"), to=FLOAT)
        return self.op("Mul", product, self.op("Mul", f"{codes}.scale", scale))

    def reshape(self, x: str, *shape: int) -> str:
        """Reshape; 0 keeps an axis."""
        return self.op("Reshape", x, shape)

    def unsqueeze(self, x: str, *axes: int) -> str:
        """Add axes of size 1."""
        return self.op("Unsqueeze", x, axes)

    def heads_first(self, x: str) -> str:
        """`[batch, length, heads, size]` to `[batch, heads, length, size]`, and back."""
        return self.op("Transpose", x, perm=[0, 2, 1, 3])

    def nothing(self, x: str, bias: Any) -> str:
        """Return the output of a sub-layer without heads or units: its bias, or zeros."""
        zeros = self.op("Mul", x, 0.0)
        return zeros if bias is None else self.op("Add", zeros, bias[...])

    def capped(self, logits: str, cap: float) -> str:
        """Return c * tanh(logits / c)."""
        return self.times(self.op("Tanh", self.times(logits, 1.0 / cap)), cap)

    def times(self, x: str, factor: Any) -> str:
        """Multiply by a constant, unless it is 1."""
        return x if np.ndim(factor) == 0 and float(factor) == 1.0 else self.op("Mul", x, factor)

    def norm(self, module: Normalisation | None, x: str) -> str:
        """Normalise over the last axis, where there is a norm."""
        if module is None:
            return x
        gain, epsilon = self.constant(module.gain(), "scale"), module.config.epsilon
        if isinstance(module.config, LayerNorm):
            bias = () if module.bias is None else (self.constant(module.bias[...], "scale_bias"),)
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
