"""Multi-head to Tucker attention: shared bases with a full mixing matrix per head, in closed form."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from headjax.attention import Attention, Tucker
from headjax.conversion.collaborative import (
    has_content_bias,
    roots,
    scaled_query_key,
    shared_key_fields,
    shared_key_params,
    weighted,
)
from headjax.conversion.products import Products, gram
from headjax.conversion.target import Converted, Site, Target, multi_head_of, require_no_rotary, require_rank
from headjax.core.fields import Size


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToTucker(Target):
    """All heads share one query and one key basis, between which each has a matrix of its own.

        W_Q^h W_K^hT ~ W_Q M_h W_K^T

    Collaborative attention is the case of diagonal M_h. At equal rank the error of Tucker attention is not larger, for
    rank * key_rank numbers per head instead of rank. Scale and biases are the same. The conversion is exact when
    the ranks reach those of the heads' queries and keys together.

    Attributes:
        rank: Size of the shared query.
        key_rank: Size of the shared key; None is `rank`.
        sweeps: Rounds of orthogonal iteration after the closed-form start.
    """

    name: ClassVar[str] = "tucker"

    rank: Size
    key_rank: Size | None = None
    sweeps: Size = 10

    @property
    def ranks(self) -> tuple[int, int]:
        """Sizes of the shared query and key."""
        return self.rank, self.rank if self.key_rank is None else self.key_rank

    def check(self, attention: Attention, width: int, memory_width: int) -> None:
        source = multi_head_of(attention)
        require_no_rotary(source, "tucker")
        size = source.num_heads * source.head_dim
        for field, rank, inputs in zip(("rank", "key_rank"), self.ranks, (width, memory_width), strict=True):
            require_rank(field, rank, min(inputs, size), "min(width, num_heads * head_dim)")

    def convert(self, sites: Sequence[Site], seed: int) -> list[Converted]:
        return [self._layer(site) for site in sites]

    def _layer(self, site: Site) -> Converted:
        weights = roots(site)
        found = tucker(weighted(scaled_query_key(site), weights), *self.ranks, self.sweeps)
        if weights is not None:
            found = TuckerFactors(weights[0].inverse @ found.left, found.core, weights[1].inverse @ found.right)
        approximation = found.products()
        fields = shared_key_fields(site.multi_head, content_bias=has_content_bias(site, approximation))
        config = Tucker(query_rank=self.ranks[0], key_rank=self.ranks[1], **fields)
        params = shared_key_params(site, approximation)
        return Converted(config, params | {"query": found.left, "mixing": found.core, "key": found.right})


class TuckerFactors(NamedTuple):
    """T_h = U C_h V^T with bases U and V shared by all heads and a full matrix per head.

    Attributes:
        left: U `[rows, left_rank]`, orthonormal columns.
        core: C `[heads, left_rank, right_rank]`.
        right: V `[columns, right_rank]`, orthonormal columns.
    """

    left: jax.Array
    core: jax.Array
    right: jax.Array

    def products(self) -> Products:
        """Return the same tensor as products: A_h = U C_h, B_h = V."""
        mixed = jnp.einsum("dr,hrs->dhs", self.left, self.core)
        right = self.right[:, None, :]
        return Products(mixed, jnp.broadcast_to(right, (right.shape[0], *mixed.shape[1:])))


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def tucker(products: Products, left_rank: int, right_rank: int, sweeps: int = 10) -> TuckerFactors:
    """Find bases for the stacked T_h = A_h B_h^T of one layer.

        minimise  sum_h ||A_h B_h^T - U C_h V^T||^2   over orthonormal U, V;   C_h = U^T A_h B_h^T V

    The start is a sequentially truncated higher-order SVD: U holds the leading eigenvectors of sum_h T_h T_h^T, V those
    of the tensor projected on U; its error is at most sqrt(2) times the best one (Vannieuwenhoven, Vandebril and
    Meerbergen 2012). Higher-order orthogonal iteration (De Lathauwer, De Moor and Vandewalle 2000) then takes each
    basis in turn as the best for the other, which never raises the error. The result is exact when the ranks reach
    those of [A_1, ..., A_H] and [B_1, ..., B_H].

    Args:
        products: A `[rows, heads, dim]`, B `[columns, heads, dim]`.
        left_rank, right_rank: Sizes of the bases.
        sweeps: Rounds of orthogonal iteration after the start.
    """
    with jax.default_matmul_precision("highest"):
        left, right = products.by_head()
        u = _leading(_weighted(left, gram(right)), left_rank)
        v = _leading(_weighted(right, gram(_inside(left, u))), right_rank)

        def round_of(_: int, bases: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            u, v = bases
            u = _leading(_weighted(left, gram(_inside(right, v))), left_rank)
            v = _leading(_weighted(right, gram(_inside(left, u))), right_rank)
            return u, v

        u, v = jax.lax.fori_loop(0, sweeps, round_of, (u, v))
        core = _inside(left, u) @ jnp.swapaxes(_inside(right, v), -1, -2)
        return TuckerFactors(u, core, v)


def _weighted(factors: jax.Array, grams: jax.Array) -> jax.Array:
    """Return sum_h F_h G_h F_h^T: `[heads, rows, dim]` and `[heads, dim, dim]` to `[rows, rows]`."""
    rows = factors.shape[1]
    weighted, plain = (jnp.swapaxes(array, 0, 1).reshape(rows, -1) for array in (factors @ grams, factors))
    return weighted @ plain.T


def _inside(factors: jax.Array, basis: jax.Array) -> jax.Array:
    """Return basis^T F_h, `[heads, rank, dim]`."""
    return jnp.einsum("dr,hde->hre", basis, factors)


def _leading(matrix: jax.Array, rank: int) -> jax.Array:
    """Return the leading eigenvectors of a symmetric matrix, `[rows, rank]`."""
    return jnp.linalg.eigh(matrix)[1][:, ::-1][:, :rank]
