"""Tucker attention: one shared query and key basis, and a full mixing matrix per head between them."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from headjax.attention.mixing import Concatenate, check_mixing
from headjax.attention.shared_key import SharedKey
from headjax.core.errors import require
from headjax.core.fields import Size
from headjax.core.serialize import kind
from headjax.core.tensors import FanIn, Initializer, Params, Tensor


@kind("tucker")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Tucker(SharedKey):
    """Collaborative attention with full mixing matrices, the Tucker form of the stacked W_Q^h W_K^hT.

        head_h = softmax(((x W_Q + b_Q) M_h (y W_K + b_K)^T + (y u_h)^T) * scale)(y W_V^h + b_V^h)

    W_Q [width, query_rank] and W_K [memory width, key_rank] belong to all heads, M_h [query_rank, key_rank] and
    u_h [memory width] to head h. Collaborative attention (Cordonnier et al. 2020) is the case of diagonal M_h, a CP
    instead of a Tucker decomposition; multi-matrix factorisation attention (Hu et al. 2024) shares bases likewise.

    Attributes:
        query_rank, key_rank: sizes of the shared query and key.
        mixing_init: initialiser of the mixing matrices [heads, query_rank, key_rank].
    """

    query_rank: Size
    key_rank: Size
    mixing_init: Initializer = FanIn()

    def validate(self) -> None:
        if isinstance(self.mixing_init, Concatenate):
            same = self.query_rank == self.key_rank
            sizes = f"{self.query_rank} and {self.key_rank}"
            require(same, "query_rank", f"mixing_init concatenate needs query_rank equal to key_rank, got {sizes}")
            check_mixing(self, "query_rank")

    @property
    def query_size(self) -> int:
        return self.query_rank

    @property
    def key_size(self) -> int:
        return self.key_rank

    def mixing(self) -> Tensor:
        shape = (self.num_heads, self.query_rank, self.key_rank)
        return Tensor(shape, ("heads", "shared_dim", None), self.mixing_init, inputs=(1,), head_axis=0)

    def mixing_flops(self) -> int:
        return self.num_heads * self.query_rank * self.key_rank

    def mix(self, params: Params, shared: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        return jnp.einsum("bqr,hrk->bqhk", shared, params["mixing"]), None
