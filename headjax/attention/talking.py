"""Talking heads: logits and attention weights are mixed across heads, on both sides of the softmax."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.attention.attend import Call
from headjax.attention.formulation import Attention, KeyValues
from headjax.attention.module import AttentionModule, Rngs
from headjax.attention.operands import AcrossHeads, Attended
from headjax.attention.projections import HeadSizes, bias_weight, into_heads
from headjax.core.fields import Listed, NotNegative, Positive, Size
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, Params, weight


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
    a value and an output. Removing head h removes column h of R, W_V^h, b_V^h and W_O^h and nothing else: every logit
    and every softmax still serves the other heads. So removal is exact.

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

    def module(self, width: int, memory_width: int) -> TalkingAttention:
        return TalkingAttention(width, memory_width=memory_width, config=self)

    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        values = self.num_heads * self.values
        queries = query_length * width * self.logit_heads * self.head_dim
        stored = key_length * memory_width * (self.logit_heads * self.head_dim + values)
        mixing = self.softmax_heads * (self.logit_heads + self.num_heads)
        pairs = query_length * key_length * (self.logit_heads * self.head_dim + mixing + values)
        outputs = query_length * values * width
        return 2 * (queries + stored + pairs + outputs)


class TalkingAttention(AttentionModule):
    """Talking-heads attention: the module of `Talking`.

    >>> layer = headjax.TalkingAttention(16, num_heads=4, logit_heads=6, softmax_heads=6, rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((1, 3, 16))).shape
    (1, 3, 16)
    """

    formulation = Talking
    config: Talking

    def __init__(self, width: int, *, rngs: Rngs = None, params: Params | None = None, **options: Any) -> None:
        super().__init__(width, rngs=rngs, params=params, **options)
        config, memory_width, bias = self.config, self.memory_width, self.config.projection_bias
        heads, logits, softmaxes = config.num_heads, config.logit_heads, config.softmax_heads
        size, value_size = config.head_dim, config.values
        self.query = weight((width, logits, size), ("embed", "logit_heads", "head_dim"))
        self.query_bias = bias_weight(bias, (logits, size), ("logit_heads", "head_dim"))
        self.key = weight((memory_width, logits, size), ("embed", "logit_heads", "head_dim"))
        self.key_bias = bias_weight(bias, (logits, size), ("logit_heads", "head_dim"))
        self.value = weight((memory_width, heads, value_size), ("embed", "heads", "head_dim"))
        self.value_bias = bias_weight(bias, (heads, value_size), ("heads", "head_dim"))
        self.logit_mixing = weight((logits, softmaxes), (None, None), config.mixing_init)
        self.weight_mixing = weight((softmaxes, heads), (None, "heads"), config.mixing_init)
        self.output = weight((heads, value_size, width), ("heads", "head_dim", "embed"), inputs=(0, 1))
        self.output_bias = bias_weight(config.output_bias, (width,), ("embed",))
        self.fill(rngs, params)

    def key_values(self, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        return {
            "key": into_heads(inputs, self.key, self.key_bias),  # [batch, key, logit_heads, head_dim]
            "value": into_heads(inputs, self.value, self.value_bias),  # [batch, key, heads, value_dim]
        }

    def attend(self, inputs: jax.Array, key_values: KeyValues, call: Call) -> Attended:
        query = into_heads(inputs, self.query, self.query_bias)  # [batch, query, logit_heads, head_dim]
        across = AcrossHeads(logits=self.logit_mixing[...], weights=self.weight_mixing[...])
        scale = self.config.logit_scale
        return call(query, key_values["key"], key_values["value"], scale=scale, across_heads=across)
