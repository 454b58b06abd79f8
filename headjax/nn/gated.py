"""Head-wise output gates around any formulation."""

from __future__ import annotations

from typing import Any

import jax

from headjax.core.errors import require
from headjax.core.kind import Kind
from headjax.core.tensors import Initializer, Zeros, weight
from headjax.nn.attend import Call
from headjax.nn.module import WrappingAttention, formulation
from headjax.nn.operands import Attended, KeyValues
from headjax.nn.projections import into_heads


@formulation("gated_heads")
class GatedAttention(WrappingAttention):
    """Any formulation with a gate per head and query (Qiu et al. 2025, Gated Attention, head-wise form).

        output = sum_h sigma(x w_h + b_h) head_h W_O^h + b_O

    x is the input of the queries. With b large and w zero every gate is one, so gates can be added to a
    trained layer without changing it.

        >>> inner = headjax.Kind(headjax.MultiHeadAttention, num_heads=4, head_dim=4)
        >>> layer = headjax.GatedAttention(16, inner=inner, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((1, 3, 16))).shape
        (1, 3, 16)

    Args:
        inner: the formulation; num_heads and head_ids are its own.
        bias_init: initialiser of b [heads].
        kernel_init: initialiser of w [width, heads]; None is the model's.
        setting: see `AttentionModule`.
    """

    def __init__(
        self,
        width: int,
        memory_width: int | None = None,
        *,
        inner: Kind,
        bias_init: Initializer = Zeros(),
        kernel_init: Initializer | None = None,
        **setting: Any,
    ) -> None:
        super().__init__(width, memory_width, **setting)
        require(inner.of is not GatedAttention, "inner", "is gated already")
        self.inner = inner.module(width, self.memory_width)
        self.gate = weight((width, self.num_heads), ("embed", "heads"), kernel_init)
        self.gate_bias = weight((self.num_heads,), ("heads",), bias_init, decay=False)

    def key_values(self, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        return self.inner.key_values(inputs, positions)

    def attend(self, inputs: jax.Array, key_values: KeyValues, call: Call) -> Attended:
        gates = jax.nn.sigmoid(into_heads(inputs, self.gate, self.gate_bias))  # [batch, query, heads]
        found = self.inner.attend(inputs, key_values, call)
        return found._replace(context=found.context * gates[..., None].astype(found.context.dtype))
