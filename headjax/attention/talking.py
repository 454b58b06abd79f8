"""Talking heads: logits and attention weights are mixed across heads, on both sides of the softmax."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.attention.attend import Call
from headjax.attention.formulation import Attention, KeyValues
from headjax.attention.operands import AcrossHeads, Attended
from headjax.attention.projections import HeadSizes, declare_into_heads, declare_output, into_heads, out_of_heads
from headjax.core.fields import Listed, NotNegative, Positive, Size
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, Params, Tensors, weight


@kind("near_identity")
@dataclasses.dataclass(frozen=True)
class NearIdentity(Initializer):
    """Identity matrix, cut or padded to shape, plus Gaussian noise: talking heads begin almost independent.

    Vectors and scalars, which have no diagonal, are noise alone.

    Attributes:
        stddev: standard deviation of the noise.
    """

    stddev: NotNegative = 0.02

    def __call__(self, key: jax.Array, tensor: nnx.Param[Any], dtype: Any) -> jax.Array:
        noise = self.stddev * jax.random.normal(key, tensor.shape, dtype)
        if noise.ndim < 2:
            return noise
        rows, columns = noise.shape[-2:]
        return noise + jnp.broadcast_to(jnp.eye(rows, columns, dtype=dtype), noise.shape)


@kind("talking")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Talking(HeadSizes, Attention):
    """Talking-heads attention (Shazeer et al. 2020).

        L_i = (x W_Q^i + b_Q^i)(y W_K^i + b_K^i)^T * scale          i of logit_heads
        A_j = softmax(sum_i L_i P_ij)                               j of softmax_heads
        head_h = (sum_j A_j R_jh)(y W_V^h + b_V^h)                  h of num_heads

    The paper has three numbers of heads. Gates, scores and removal refer to heads of the last kind, which have
    a value and an output: removing head h removes column h of R, W_V^h, b_V^h and W_O^h and nothing else,
    because every logit and every softmax still serves the heads that stay. So removal is exact.

    Only the einsum kernel computes it: the other kernels never hold the weights of two heads at once. A bias of the
    logits (relative positions) has one entry per softmax head, or one for all. The probabilities reported for head h
    are its mixed weights, which need not sum to one.

    Attributes:
        head_dim: size of each query and key.
        value_dim: size of each value; None is head_dim.
        logit_heads: number of query and key heads.
        softmax_heads: number of softmaxes.
        mixing_init: initialiser of P [logit_heads, softmax_heads] and R [softmax_heads, num_heads].
        scale: multiplies the logits; None is 1 / sqrt(head_dim).
        projection_bias: whether queries, keys and values have biases.
        output_bias: whether the output has one.
    """

    head_dim: Size
    logit_heads: Listed
    softmax_heads: Listed
    value_dim: Size | None = None
    mixing_init: Initializer = NearIdentity()
    scale: Positive | None = None
    projection_bias: bool = True
    output_bias: bool = True

    @property
    def bias_ids(self) -> tuple[int, ...]:
        return tuple(range(self.softmax_heads))

    def tensors(self, width: int, memory_width: int) -> Tensors:
        logits, softmaxes, heads, bias = self.logit_heads, self.softmax_heads, self.num_heads, self.projection_bias
        return {
            **declare_into_heads("query", width, logits, self.head_dim, bias=bias, axis="logit_heads"),
            **declare_into_heads("key", memory_width, logits, self.head_dim, bias=bias, axis="logit_heads"),
            **declare_into_heads("value", memory_width, heads, self.values, bias=bias),
            "logit_mixing": weight((logits, softmaxes), (None, None), self.mixing_init),
            "weight_mixing": weight((softmaxes, heads), (None, "heads"), self.mixing_init),
            **declare_output(heads, self.values, width, bias=self.output_bias),
        }

    def key_values(self, params: Params, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        return {
            "key": into_heads(inputs, params["key"], params.get("key_bias")),
            "value": into_heads(inputs, params["value"], params.get("value_bias")),
        }

    def attend(self, params: Params, inputs: jax.Array, key_values: KeyValues, call: Call) -> Attended:
        query = into_heads(inputs, params["query"], params.get("query_bias"))
        across_heads = AcrossHeads(logits=params["logit_mixing"], weights=params["weight_mixing"])
        return call(query, key_values["key"], key_values["value"], scale=self.logit_scale, across_heads=across_heads)

    def combine(self, params: Params, context: jax.Array) -> jax.Array:
        return out_of_heads(context, params["output"], params.get("output_bias"))

    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        values = self.num_heads * self.values
        queries = query_length * width * self.logit_heads * self.head_dim
        stored = key_length * memory_width * (self.logit_heads * self.head_dim + values)
        mixing = self.softmax_heads * (self.logit_heads + self.num_heads)
        pairs = query_length * key_length * (self.logit_heads * self.head_dim + mixing + values)
        outputs = query_length * values * width
        return 2 * (queries + stored + pairs + outputs)
