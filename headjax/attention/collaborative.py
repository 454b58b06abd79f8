"""Collaborative attention: all heads share one key and one query projection and each weights its dimensions."""

from __future__ import annotations

import dataclasses

import jax

from headjax.attention.mixing import Concatenate, check_mixing
from headjax.attention.shared_key import SharedKey
from headjax.core.fields import Size
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, Normal, Params, Tensor


@kind("collaborative")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Collaborative(SharedKey):
    """Collaborative multi-head attention (Cordonnier et al. 2020, equation 6).

        head_h = softmax(((x W_Q + b_Q) diag(m_h) (y W_K + b_K)^T + (y u_h)^T) * scale)(y W_V^h + b_V^h)

    W_Q [width, shared_dim] and W_K [memory width, shared_dim] belong to all heads, m_h [shared_dim] and
    u_h [memory width] to head h. Values and output are those of multi-head attention. The query is mixed, not the key,
    so that a decoding cache holds the one shared key and not one per head.

    A trained multi-head layer becomes this one with W_Q, W_K, M = [m_h] the factors of its stacked W_Q^h W_K^hT and
    u_h = W_K^h b_Q^h (section 3.3): b_K vanishes in the softmax, b_Q turns into the content bias.

    Attributes:
        shared_dim: size of the shared queries and keys.
        mixing_init: initialiser of the mixing matrix M [heads, shared_dim]; the paper's three are in
            `headjax.attention.mixing.MIXINGS`.
    """

    shared_dim: Size
    mixing_init: Initializer = Normal(0.2)

    def validate(self) -> None:
        if isinstance(self.mixing_init, Concatenate):
            check_mixing(self, "shared_dim")

    @property
    def query_size(self) -> int:
        return self.shared_dim

    @property
    def key_size(self) -> int:
        return self.shared_dim

    def mixing(self) -> Tensor:
        shape = (self.num_heads, self.shared_dim)
        return Tensor(shape, ("heads", "shared_dim"), self.mixing_init, inputs=(1,), head_axis=0)

    def mixing_flops(self) -> int:
        return 0

    def mix(self, params: Params, shared: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        return shared[:, :, None, :], params["mixing"]
