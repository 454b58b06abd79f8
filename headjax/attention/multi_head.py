"""Multi-head attention with a free head size: the standard and the fixed-head-size formulation are one class."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from headjax.attention.attend import Attended, attend, default_scale
from headjax.attention.base import Attention, Call, Memory
from headjax.attention.projections import into_heads, out_of_heads
from headjax.errors import require_positive
from headjax.initializers import Zeros
from headjax.serialize import kind
from headjax.tensors import Params, Tensor, Tensors


@kind("multi_head")
@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiHead(Attention):
    """Multi-head attention.

        head_h = softmax((x W_Q^h + b_Q^h)(y W_K^h + b_K^h)^T * scale)(y W_V^h + b_V^h)
        output = sum_h head_h W_O^h + b_O

    The standard layer (Vaswani et al. 2017) has head_dim = width / num_heads. Any other head_dim is the fixed head size
    of Bhojanapalli et al. (2020), equation 3, whose heads do not shrink as their number grows. Single-head attention
    (Liu et al. 2021) is num_heads = 1.

    Attributes:
        head_dim: size of each query and key.
        value_dim: size of each value; None is head_dim.
        scale: multiplies the logits; None is 1 / sqrt(head_dim).
        projection_bias: whether queries, keys and values have biases.
        output_bias: whether the output has one.
    """

    head_dim: int
    value_dim: int | None = None
    scale: float | None = None
    projection_bias: bool = True
    output_bias: bool = True

    def validate(self) -> None:
        require_positive(self, "head_dim")
        if self.value_dim is not None:
            require_positive(self, "value_dim")

    @property
    def values(self) -> int:
        """Size of each value."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def logit_scale(self) -> float:
        """What multiplies the dot products."""
        return default_scale(self.head_dim) if self.scale is None else self.scale

    def tensors(self, width: int, memory_width: int) -> Tensors:
        def projection(inputs: int, size: int) -> Tensor:
            return Tensor((inputs, self.num_heads, size), ("embed", "heads", "head_dim"), head_axis=1)

        def bias(size: int) -> Tensor:
            return Tensor((self.num_heads, size), ("heads", "head_dim"), Zeros(), head_axis=0)

        tensors: dict[str, Any] = {
            "query": projection(width, self.head_dim),
            "key": projection(memory_width, self.head_dim),
            "value": projection(memory_width, self.values),
            "output": Tensor(
                (self.num_heads, self.values, width), ("heads", "head_dim", "embed"), inputs=(0, 1), head_axis=0
            ),
        }
        if self.projection_bias:
            tensors |= {
                "query_bias": bias(self.head_dim),
                "key_bias": bias(self.head_dim),
                "value_bias": bias(self.values),
            }
        if self.output_bias:
            tensors["output_bias"] = Tensor((width,), ("embed",), Zeros())
        return tensors

    def memory(self, params: Params, inputs: jax.Array, positions: jax.Array | None) -> Memory:
        return {
            "key": into_heads(inputs, params["key"], params.get("key_bias")),
            "value": into_heads(inputs, params["value"], params.get("value_bias")),
        }

    def attend(self, params: Params, inputs: jax.Array, memory: Memory, call: Call) -> Attended:
        query = into_heads(inputs, params["query"], params.get("query_bias"))
        return attend(
            query,
            memory["key"],
            memory["value"],
            scale=self.logit_scale,
            mask=call.mask,
            bias=call.bias,
            gates=call.gates,
            dropout=call.dropout,
            implementation=call.implementation,
        )

    def combine(self, params: Params, context: jax.Array) -> jax.Array:
        return out_of_heads(context, params["output"], params.get("output_bias"))

    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        queries = query_length * width * self.head_dim
        memory = key_length * memory_width * (self.head_dim + self.values)
        pairs = query_length * key_length * (self.head_dim + self.values)
        outputs = query_length * self.values * width
        return 2 * self.num_heads * (queries + memory + pairs + outputs)
