"""Multi-head to collaborative attention by a CP decomposition of the stacked W_Q^h W_K^hT."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from headjax.attention import Attention, Collaborative
from headjax.conversion.cp import CP
from headjax.conversion.factorisation import Search, decompose
from headjax.conversion.products import Products
from headjax.conversion.shared_key import (
    has_content_bias,
    roots,
    scaled_query_key,
    shared_key_fields,
    shared_key_params,
    weighted,
)
from headjax.conversion.target import Converted, Site, Target, multi_head_of, require_no_rotary, require_rank


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToCollaborative(Target):
    """All heads share one query and one key projection (Cordonnier et al. 2020, section 3.3).

        W_Q^h W_K^hT ~ W_Q diag(m_h) W_K^T,   W_Q [width, shared_dim], W_K [memory width, shared_dim]

    The logits stay divided by the square root of the original head_dim, whatever the shared_dim; b_K vanishes in the
    softmax and b_Q turns into the content bias W_K^h b_Q^h, exactly. At shared_dim = num_heads * head_dim the layer
    computes what it did: its own weights side by side, mixed by blocks of ones. Below, calibrated conversions minimise
    the error of centred logits and others that of the weights.

    Attributes:
        shared_dim: size of the shared queries and keys, at most num_heads * head_dim.
        search: starts and solver of the decomposition.
    """

    name: ClassVar[str] = "collaborative"

    shared_dim: int
    search: Search = Search()

    def check(self, attention: Attention, width: int, memory_width: int) -> None:
        source = multi_head_of(attention)
        require_no_rotary(source, "collaborative")
        require_rank("shared_dim", self.shared_dim, source.num_heads * source.head_dim, "num_heads * head_dim")

    def convert(self, sites: Sequence[Site], seed: int) -> list[Converted]:
        found: dict[int, CP] = {}
        for members in same_shapes(sites):
            full = self.shared_dim == sites[members[0]].params["query"][0].size
            factors = [_side_by_side(sites[i]) for i in members] if full else self._fit(sites, members, seed)
            found |= dict(zip(members, factors, strict=True))
        return [self._layer(site, found[i]) for i, site in enumerate(sites)]

    def _fit(self, sites: Sequence[Site], members: Sequence[int], seed: int) -> list[CP]:
        weights = [roots(sites[i]) for i in members]
        layers = [weighted(scaled_query_key(sites[i]), weight) for i, weight in zip(members, weights, strict=True)]
        stacked = Products(*(jnp.stack(factors) for factors in zip(*layers, strict=True)))
        fit = decompose(stacked, self.shared_dim, search=self.search, seed=seed).factors
        factors = [jax.tree.map(lambda array, i=i: array[i], fit) for i in range(len(members))]
        return [
            factor
            if weight is None
            else factor._replace(left=weight[0].inverse @ factor.left, right=weight[1].inverse @ factor.right)
            for factor, weight in zip(factors, weights, strict=True)
        ]

    def _layer(self, site: Site, factors: CP) -> Converted:
        source = site.multi_head
        exact = self.shared_dim == source.num_heads * source.head_dim
        approximation = None if exact else factors.products()
        fields = shared_key_fields(source, content_bias=has_content_bias(site, approximation))
        params = shared_key_params(site, approximation)
        params |= {"query": factors.left, "key": factors.right, "mixing": factors.mixing}
        return Converted(Collaborative(shared_dim=self.shared_dim, **fields), params)


def same_shapes(sites: Sequence[Site]) -> list[list[int]]:
    """Positions of the sites whose queries and keys have equal shapes, and which can be decomposed in one call."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, site in enumerate(sites):
        groups.setdefault((*site.params["query"].shape, site.params["key"].shape[0]), []).append(i)
    return list(groups.values())


def _side_by_side(site: Site) -> CP:
    """The heads' own queries and keys concatenated, and blocks of ones to tell whose they are (section 3.1)."""
    left, right = scaled_query_key(site)
    heads, dim = left.shape[1:]
    owner = jnp.arange(heads * dim)[None, :] // dim == jnp.arange(heads)[:, None]
    return CP(left.reshape(left.shape[0], -1), owner.astype(left.dtype), right.reshape(right.shape[0], -1))
