"""Nodes of an ONNX graph: plain `MatMul`s on initializers, which quantisers and the fusions of runtimes look for."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.nn.norms import LayerNorm, Normalisation

FLOAT, INT32, INT64, BOOL = 1, 6, 7, 9  # numbers of ONNX's `DataType`
MICROSOFT = "com.microsoft"  # domain of onnxruntime's own operators
SMALL = 4096  # numbers of a constant that is shared, so that runtimes see equal nodes

Matrix = tuple[str, str | None]
"""A matrix and, where it is of int8, the scales of its numbers."""


@functools.cache
def libraries() -> tuple[Any, Any]:
    """Return onnx and onnxruntime."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        raise HeadjaxError("layout onnx: needs onnx and onnxruntime; pip install '.[onnx]' from a checkout") from None
    return onnx, onnxruntime


class Graph:
    """An ONNX graph under construction, whose tensors are referred to by name.

    With `bits`, products with weights are computed in int8: weights have so many bits and one scale for each output
    channel, inputs are quantised by their range in each call. The token embeddings are int8 too, with a scale a token.
    """

    def __init__(self, bits: int = 0) -> None:
        self.bits = bits
        self.nodes: list[Any] = []
        self.outputs: list[str] = []
        self.initializers: dict[str, np.ndarray] = {}
        self.token: Matrix = "", None  # the embeddings
        self._names: dict[Any, str] = {}  # of small constants, and of inputs in int8
        self._numbers = itertools.count()

    def op(
        self, kind: str, *inputs: Any, name: str = "", domain: str = "", more: Sequence[str] = (), **attributes: Any
    ) -> str:
        """Add a node; return the name of its output. `more` outputs have that name and an ending.

        Inputs are names, or numbers, which become constants.
        """
        output = name or f"{kind}_{next(self._numbers)}"
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        outputs = [output, *(output + end for end in more)]
        make_node = libraries()[0].helper.make_node
        self.nodes.append(make_node(kind, names, outputs, name=output, domain=domain, **attributes))
        return output

    def constant(self, value: Any, name: str = "constant", dtype: Any = None) -> str:
        """Add an initializer, of int64 or float32 unless it has another type; equal small ones are one."""
        array = np.asarray(value)
        array = array.astype(dtype or (np.int64 if np.issubdtype(array.dtype, np.integer) else np.float32))
        key = f"{name}_{next(self._numbers)}"
        if array.size <= SMALL:
            key = self._names.setdefault((array.dtype, array.shape, array.tobytes()), key)
        self.initializers.setdefault(key, array)
        return key

    def linear(self, x: str, kernel: Any, bias: Any = None, name: str = "weight", *, by_row: bool = False) -> str:
        """X W + b of a kernel `[inputs, ...]`, whose other axes become one.

        In int8, `by_row` takes a range for every token in place of one for all: few tokens have inputs that are tens of
        times those of the others behind an activation.
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
        """Rows of a matrix."""
        rows = self.op("Gather", matrix, index)
        if scale is None:
            return rows
        return self.op("Mul", self.op("Cast", rows, to=FLOAT), self.op("Gather", scale, index))

    def product(self, x: str, matrix: str, scale: str | None) -> str:
        """X W."""
        if scale is None:
            return self.op("MatMul", x, matrix)
        if x not in self._names:
            self._names[x] = self.op("DynamicQuantizeLinear", x, more=(".scale", ".zero"))
        codes = self._names[x]
        product = self.op("Cast", self.op("MatMulInteger", codes, matrix, f"{codes}.zero"), to=FLOAT)
        return self.op("Mul", product, self.op("Mul", f"{codes}.scale", scale))

    def reshape(self, x: str, *shape: int) -> str:
        """Reshape; 0 keeps an axis."""
        return self.op("Reshape", x, shape)

    def unsqueeze(self, x: str, *axes: int) -> str:
        """Add axes of size 1."""
        return self.op("Unsqueeze", x, axes)

    def transpose(self, x: str, *axes: int) -> str:
        """Permute the axes."""
        return self.op("Transpose", x, perm=axes)

    def nothing(self, x: str, bias: Any) -> str:
        """Return the output of a sub-layer without heads or units: its bias, or zeros."""
        zeros = self.op("Mul", x, 0.0)
        return zeros if bias is None else self.op("Add", zeros, bias)

    def capped(self, logits: str, cap: float | None) -> str:
        """Return c * tanh(logits / c), or the logits without a cap."""
        return logits if cap is None else self.times(self.op("Tanh", self.times(logits, 1.0 / cap)), cap)

    def times(self, x: str, factor: Any) -> str:
        """Multiply by a constant, unless it is 1."""
        return x if np.ndim(factor) == 0 and float(factor) == 1.0 else self.op("Mul", x, factor)

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
