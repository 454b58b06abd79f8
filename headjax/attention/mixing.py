"""Initialisers of weights that mix heads or share dimensions among them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from headjax.core.errors import ConfigError, require
from headjax.core.fields import NotNegative
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, Normal, Ones

if TYPE_CHECKING:
    from headjax.attention.base import Attention
    from headjax.core.tensors import Tensor


@kind("concatenate")
@dataclasses.dataclass(frozen=True)
class Concatenate(Initializer):
    """Blocks of ones: of dim shared dimensions, head h of H starts with h * dim / H to (h + 1) * dim / H for itself.

    With it collaborative attention starts as multi-head attention of concatenated heads (Cordonnier et al. 2020,
    section 3.1). A full mixing matrix per head (Tucker) has the blocks on its diagonal.
    """

    def __call__(self, key: jax.Array, tensor: Tensor, dtype: Any) -> jax.Array:
        heads, *sizes = tensor.shape[tensor.stacked :]
        if len(set(sizes)) != 1 or sizes[0] % heads:
            raise ConfigError(
                f"mixing_init: concatenate cannot tile mixing weights {[heads, *sizes]} with {heads} blocks"
            )
        owner = jnp.arange(sizes[0]) // (sizes[0] // heads)
        blocks = (owner[None, :] == jnp.arange(heads)[:, None]).astype(dtype)
        if len(sizes) == 2:
            blocks = blocks[:, :, None] * jnp.eye(sizes[0], dtype=dtype)[None]
        return jnp.broadcast_to(blocks, tensor.shape)


@kind("near_identity")
@dataclasses.dataclass(frozen=True)
class NearIdentity(Initializer):
    """The identity (as far as the matrix is square) plus Gaussian noise: talking heads start hardly talking."""

    stddev: NotNegative = 0.02

    def __call__(self, key: jax.Array, tensor: Tensor, dtype: Any) -> jax.Array:
        rows, columns = tensor.shape[-2:]
        identity = jnp.broadcast_to(jnp.eye(rows, columns, dtype=dtype), tensor.shape)
        return identity + self.stddev * jax.random.normal(key, tensor.shape, dtype)


MIXINGS: dict[str, Initializer] = {"concatenate": Concatenate(), "ones": Ones, "normal": Normal(0.2)}
"""The initialisations that Cordonnier et al. (2020) name, `normal` being the default of their code."""


def check_mixing(attention: Attention, field: str) -> None:
    """Refuses `Concatenate` for a size that its heads cannot share evenly, unless heads were removed since."""
    size = getattr(attention, field)
    require(
        attention.head_ids is not None or size % attention.num_heads == 0,
        field,
        f"mixing_init concatenate needs a multiple of the num_heads of {attention.num_heads}, got {size}",
    )
