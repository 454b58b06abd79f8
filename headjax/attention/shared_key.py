"""What the formulations share whose heads all read one key: collaborative attention and its Tucker generalisation."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from headjax.attention.attend import Attended, default_scale
from headjax.attention.base import Attention, Call, Memory
from headjax.attention.mixing import Concatenate
from headjax.attention.projections import declare_into_heads, declare_output, into_heads, out_of_heads
from headjax.core.fields import Size
from headjax.core.tensors import Normal, Params, Tensor, Tensors, Zeros


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedKey(Attention):
    """Attention whose heads share one query and one key projection and differ in how they mix the query.

        head_h = softmax((mix_h(x W_Q + b_Q) (y W_K + b_K)^T + (y u_h)^T) * scale)(y W_V^h + b_V^h)

    W_Q [width, query_size] and W_K [memory width, key_size] belong to all heads; the map mix_h from query_size to
    key_size is the subclass's. Values and output are those of multi-head attention. The query is mixed, not the key, so
    that a decoding cache holds one key for all heads.

    Attributes:
        value_dim: size of each value.
        head_dim: the head size that sets the logits' scale, 1 / sqrt(head_dim); a conversion keeps the original's,
            whatever the shared size.
        projection_bias: whether the shared query and key have biases b_Q and b_K.
        content_bias: whether every head has a content bias u_h [memory width].
        value_bias, output_bias: whether values and output have biases.
    """

    value_dim: Size
    head_dim: Size
    projection_bias: bool = False
    content_bias: bool = False
    value_bias: bool = True
    output_bias: bool = True

    @property
    @abc.abstractmethod
    def query_size(self) -> int:
        """Size of the shared query."""

    @property
    @abc.abstractmethod
    def key_size(self) -> int:
        """Size of the shared key."""

    @abc.abstractmethod
    def mixing(self) -> Tensor:
        """Declares the mixing weights."""

    @abc.abstractmethod
    def mixing_flops(self) -> int:
        """Multiply-adds that mix one query for all heads in matrix products."""

    @abc.abstractmethod
    def mix(self, params: Params, shared: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """What `attend` takes as query and mixing, of the shared query `[batch, query, query_size]`."""

    def tensors(self, width: int, memory_width: int) -> Tensors:
        tensors: Tensors = {
            "query": Tensor((width, self.query_size), ("embed", "shared_dim")),
            "key": Tensor((memory_width, self.key_size), ("embed", "shared_dim")),
            "mixing": self.mixing(),
            **declare_into_heads("value", memory_width, self.num_heads, self.value_dim, bias=self.value_bias),
            **declare_output(self.num_heads, self.value_dim, width, bias=self.output_bias),
        }
        if self.projection_bias:
            tensors["query_bias"] = Tensor((self.query_size,), ("shared_dim",), Zeros(), decay=False)
            tensors["key_bias"] = Tensor((self.key_size,), ("shared_dim",), Zeros(), decay=False)
        if self.content_bias:
            tensors["content_bias"] = Tensor(
                (memory_width, self.num_heads), ("embed", "heads"), Zeros(), head_axis=1, decay=False
            )
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
        query, mixing = self.mix(params, shared)
        scale = default_scale(self.head_dim)
        if self.content_bias:
            content = scale * jnp.swapaxes(memory["content"], 1, 2)[:, :, None, :]
            call = call._replace(bias=content if call.bias is None else content + call.bias)
        return call.attend(query, memory["key"][:, :, None, :], memory["value"], scale=scale, mixing=mixing)

    def combine(self, params: Params, context: jax.Array) -> jax.Array:
        return out_of_heads(context, params["output"], params.get("output_bias"))

    def with_heads(self, heads: Sequence[int]) -> Attention:
        kept = super().with_heads(heads)
        if not isinstance(getattr(self, "mixing_init", None), Concatenate):
            return kept
        # Equal blocks initialise a whole layer; what is left of one need not divide into any.
        return dataclasses.replace(kept, mixing_init=Normal(0.2))  # type: ignore[call-arg]

    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        heads, values = self.num_heads, self.num_heads * self.value_dim
        queries = query_length * (width * self.query_size + self.mixing_flops())
        content = memory_width * heads if self.content_bias else 0
        memory = key_length * (memory_width * (self.key_size + values) + content)
        pairs = query_length * key_length * (heads * self.key_size + values)
        outputs = query_length * values * width
        return 2 * (queries + memory + pairs + outputs)
