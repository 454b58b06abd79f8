"""Head-wise output gates around any formulation."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from headjax.attention.attend import Call
from headjax.attention.formulation import KeyValues, Wrapping
from headjax.attention.module import Rngs, WrappingAttention
from headjax.attention.operands import Attended
from headjax.attention.projections import into_heads
from headjax.core.errors import require
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, Params, Zeros, weight


@kind("gated_heads")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Gated(Wrapping):
    """Any formulation with a gate per head and query (Qiu et al. 2025, Gated Attention, head-wise form).

        output = sum_h sigma(x w_h + b_h) head_h W_O^h + b_O

    x is the input of the queries. With b large and w zero every gate is one, so gates can be added to a
    trained layer without changing it.

    Attributes:
        inner: the formulation; num_heads and head_ids are its own.
        bias_init: initialiser of b [heads].
        kernel_init: initialiser of w [width, heads]; None is the model's.
    """

    bias_init: Initializer = Zeros()
    kernel_init: Initializer | None = None

    def validate(self) -> None:
        require(not isinstance(self.inner, Gated), "inner", "is gated already")

    def module(self, width: int, memory_width: int) -> GatedAttention:
        return GatedAttention(width, memory_width=memory_width, config=self)

    def step_flops(self, width: int, memory_width: int, length: int) -> int:
        return self.inner.step_flops(width, memory_width, length) + 2 * width * self.num_heads

    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        inner = self.inner.flops(width, memory_width, query_length, key_length)
        return inner + 2 * query_length * width * self.num_heads


class GatedAttention(WrappingAttention):
    """Attention with a gate for each head: the module of `Gated`.

    >>> inner = headjax.attention.MultiHead(num_heads=4, head_dim=4)
    >>> layer = headjax.GatedAttention(16, inner=inner, rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((1, 3, 16))).shape
    (1, 3, 16)
    """

    formulation = Gated
    config: Gated

    def __init__(self, width: int, *, rngs: Rngs = None, params: Params | None = None, **options: Any) -> None:
        super().__init__(width, rngs=rngs, params=params, **options)
        config, heads = self.config, self.config.num_heads
        self.inner = config.inner.module(width, self.memory_width)
        self.gate = weight((width, heads), ("embed", "heads"), config.kernel_init)
        self.gate_bias = weight((heads,), ("heads",), config.bias_init, decay=False)
        self.fill(rngs, params)

    def key_values(self, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        return self.inner.key_values(inputs, positions)

    def attend(self, inputs: jax.Array, key_values: KeyValues, call: Call) -> Attended:
        gates = jax.nn.sigmoid(into_heads(inputs, self.gate, self.gate_bias))  # [batch, query, heads]
        found = self.inner.attend(inputs, key_values, call)
        return found._replace(context=found.context * gates[..., None].astype(found.context.dtype))
