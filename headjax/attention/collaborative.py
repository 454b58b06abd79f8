"""Collaborative attention: all heads share one key and one query projection and each weights its dimensions."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from headjax.attention.attend import Attended, attend, default_scale
from headjax.attention.base import Attention, Call, Memory
from headjax.attention.projections import into_heads, out_of_heads
from headjax.errors import require_positive
from headjax.initializers import Initializer, Normal, Zeros
from headjax.serialize import kind
from headjax.tensors import Params, Tensor, Tensors


@kind("collaborative")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Collaborative(Attention):
    """Collaborative multi-head attention (Cordonnier et al. 2020, equation 6).

        head_h = softmax(((x W_Q + b_Q) diag(m_h) (y W_K + b_K)^T + (y u_h)^T) * scale)(y W_V^h + b_V^h)

    W_Q [width, shared_dim] and W_K [memory width, shared_dim] belong to all heads, m_h [shared_dim] and
    u_h [memory width] to head h. Values and output are those of multi-head attention. The query is mixed, not the key,
    so that a decoding cache holds the one shared key and not one per head.

    A trained multi-head layer becomes this one with W_Q, W_K, M = [m_h] the factors of its stacked W_Q^h W_K^hT and
    u_h = W_K^h b_Q^h (section 3.3): b_K vanishes in the softmax, b_Q turns into the content bias.

    Attributes:
        shared_dim: size of the shared queries and keys.
        value_dim: size of each value.
        head_dim: the head size that sets the logits' scale, 1 / sqrt(head_dim); a conversion keeps the original's,
            whatever the shared_dim.
        mixing_init: initialiser of the mixing matrix M [heads, shared_dim].
        projection_bias: whether the shared query and key have biases b_Q and b_K.
        content_bias: whether every head has a content bias u_h.
        value_bias, output_bias: whether values and output have biases.
    """

    shared_dim: int
    value_dim: int
    head_dim: int
    mixing_init: Initializer = Normal(0.2)
    projection_bias: bool = False
    content_bias: bool = False
    value_bias: bool = True
    output_bias: bool = True

    def validate(self) -> None:
        require_positive(self, "shared_dim", "value_dim", "head_dim")

    def tensors(self, width: int, memory_width: int) -> Tensors:
        heads = self.num_heads
        tensors: dict[str, Any] = {
            "query": Tensor((width, self.shared_dim), ("embed", "shared_dim")),
            "key": Tensor((memory_width, self.shared_dim), ("embed", "shared_dim")),
            "mixing": Tensor((heads, self.shared_dim), ("heads", "shared_dim"), self.mixing_init, head_axis=0),
            "value": Tensor((memory_width, heads, self.value_dim), ("embed", "heads", "head_dim"), head_axis=1),
            "output": Tensor(
                (heads, self.value_dim, width), ("heads", "head_dim", "embed"), inputs=(0, 1), head_axis=0
            ),
        }
        if self.projection_bias:
            tensors["query_bias"] = Tensor((self.shared_dim,), ("shared_dim",), Zeros())
            tensors["key_bias"] = Tensor((self.shared_dim,), ("shared_dim",), Zeros())
        if self.content_bias:
            tensors["content_bias"] = Tensor((memory_width, heads), ("embed", "heads"), Zeros(), head_axis=1)
        if self.value_bias:
            tensors["value_bias"] = Tensor((heads, self.value_dim), ("heads", "head_dim"), Zeros(), head_axis=0)
        if self.output_bias:
            tensors["output_bias"] = Tensor((width,), ("embed",), Zeros())
        return tensors

    def memory(self, params: Params, inputs: jax.Array, positions: jax.Array | None) -> Memory:
        memory = {
            "key": into_heads(inputs, params["key"], params.get("key_bias")),
            "value": into_heads(inputs, params["value"], params.get("value_bias")),
        }
        if self.content_bias:
            memory["content"] = into_heads(inputs, params["content_bias"])
        return memory

    def attend(self, params: Params, inputs: jax.Array, memory: Memory, call: Call) -> Attended:
        shared = into_heads(inputs, params["query"], params.get("query_bias"))
        query = shared[:, :, None, :] * params["mixing"][None, None]
        scale = default_scale(self.head_dim)
        bias = call.bias
        if self.content_bias:
            content = scale * jnp.swapaxes(memory["content"], 1, 2)[:, :, None, :]
            bias = content if bias is None else content + bias
        return attend(
            query,
            memory["key"][:, :, None, :],
            memory["value"],
            scale=scale,
            mask=call.mask,
            bias=bias,
            gates=call.gates,
            dropout=call.dropout,
            implementation=call.implementation,
        )

    def combine(self, params: Params, context: jax.Array) -> jax.Array:
        return out_of_heads(context, params["output"], params.get("output_bias"))

    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        heads, values = self.num_heads, self.num_heads * self.value_dim
        queries = query_length * width * self.shared_dim
        content = memory_width * heads if self.content_bias else 0
        memory = key_length * (memory_width * (self.shared_dim + values) + content)
        pairs = query_length * key_length * (heads * self.shared_dim + values)
        outputs = query_length * values * width
        return 2 * (queries + memory + pairs + outputs)
