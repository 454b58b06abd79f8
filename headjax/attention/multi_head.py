"""Multi-head attention with a free head size: the standard and the fixed-head-size formulation are one class."""

from __future__ import annotations

import dataclasses

import jax

from headjax.attention.attend import Attended
from headjax.attention.base import Attention, Call, Memory
from headjax.attention.head_sizes import HeadSizes
from headjax.attention.projections import declare_into_heads, declare_output, into_heads, out_of_heads
from headjax.attention.rotary import Rotary, positions_or_count
from headjax.core.fields import Positive, Size
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensors


@kind("multi_head")
@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiHead(HeadSizes, Attention):
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
        rotary: turns queries and keys by their positions, or None. The memory holds turned keys.
    """

    head_dim: Size
    value_dim: Size | None = None
    scale: Positive | None = None
    projection_bias: bool = True
    output_bias: bool = True
    rotary: Rotary | None = None

    def validate(self) -> None:
        if self.rotary is not None:
            self.rotary.check("head_dim", self.head_dim)

    def tensors(self, width: int, memory_width: int) -> Tensors:
        heads, bias = self.num_heads, self.projection_bias
        return {
            **declare_into_heads("query", width, heads, self.head_dim, bias=bias),
            **declare_into_heads("key", memory_width, heads, self.head_dim, bias=bias),
            **declare_into_heads("value", memory_width, heads, self.values, bias=bias),
            **declare_output(heads, self.values, width, bias=self.output_bias),
        }

    def memory(self, params: Params, inputs: jax.Array, positions: jax.Array | None) -> Memory:
        key = into_heads(inputs, params["key"], params.get("key_bias"))
        if self.rotary is not None:
            key = self.rotary(key, positions_or_count(positions, key.shape[1]))
        return {"key": key, "value": into_heads(inputs, params["value"], params.get("value_bias"))}

    def attend(self, params: Params, inputs: jax.Array, memory: Memory, call: Call) -> Attended:
        query = into_heads(inputs, params["query"], params.get("query_bias"))
        if self.rotary is not None:
            query = self.rotary(query, positions_or_count(call.positions, query.shape[1], call.mask))
        return call.attend(query, memory["key"], memory["value"], scale=self.logit_scale)

    def combine(self, params: Params, context: jax.Array) -> jax.Array:
        return out_of_heads(context, params["output"], params.get("output_bias"))

    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        queries = query_length * width * self.head_dim
        memory = key_length * memory_width * (self.head_dim + self.values)
        pairs = query_length * key_length * (self.head_dim + self.values)
        outputs = query_length * self.values * width
        return 2 * self.num_heads * (queries + memory + pairs + outputs)
