"""A layer all of whose heads were removed: what remains is its output bias."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from headjax.attention.attend import Attended
from headjax.attention.base import Attention, Call, Memory
from headjax.core.errors import require
from headjax.core.fields import check_fields
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensor, Tensors, Zeros


@kind("no_heads")
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoHeads(Attention):
    """Attention without heads: every output is b_O (or zero), the value of the empty sum over heads plus the bias.

    Attributes:
        output_bias: whether there is a b_O.
    """

    num_heads: int = 0
    output_bias: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.num_heads == 0, "num_heads", f"a layer without heads has 0, got {self.num_heads}")

    @classmethod
    def from_params(cls, params: Params) -> tuple[NoHeads, Params]:
        """What is left of a formulation's parameters: its output bias, if it has one."""
        kept = {name: array for name, array in params.items() if name == "output_bias"}
        return cls(output_bias=bool(kept)), kept

    def tensors(self, width: int, memory_width: int) -> Tensors:
        return {"output_bias": Tensor((width,), ("embed",), Zeros(), decay=False)} if self.output_bias else {}

    def memory(self, params: Params, inputs: jax.Array, positions: jax.Array | None) -> Memory:
        return {}

    def attend(self, params: Params, inputs: jax.Array, memory: Memory, call: Call) -> Attended:
        return Attended(jnp.zeros((*inputs.shape[:2], 0, 1), inputs.dtype), None)

    def combine(self, params: Params, context: jax.Array) -> jax.Array:
        if not self.output_bias:
            return jnp.zeros((*context.shape[:2], 1), context.dtype)
        bias = params["output_bias"].reshape(1, 1, -1)
        return jnp.broadcast_to(bias, (*context.shape[:2], bias.shape[-1]))

    def output_matrices(self, params: Params) -> jax.Array:
        return jnp.zeros((0, 1, params["output_bias"].shape[-1] if self.output_bias else 1))

    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        return 0

    def with_heads(self, heads: Sequence[int]) -> Attention:
        return self
