"""Multi-head to latent attention: one short latent from which all keys and values are computed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from headjax.attention import Attention, Latent
from headjax.conversion.calibration import covariance_root
from headjax.conversion.products import gram
from headjax.conversion.target import (
    Converted,
    Site,
    Target,
    bias_or_zeros,
    multi_head_of,
    require_no_rotary,
    require_rank,
)
from headjax.core.fields import Size
from headjax.core.tensors import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToLatent(Target):
    """Keys and values of all heads come from one latent c = y W_C of size `rank`; a cache holds nothing else.

        [W_K^1, ..., W_K^H, W_V^1, ..., W_V^H] ~ W_C [W_UK^1, ..., W_UK^H, W_UV^1, ..., W_UV^H]

    A singular value decomposition gives the best W_C. In it each key counts by its logits, W_K^h W_Q^hT, each value by
    its outputs, W_V^h W_O^h, and keys and values together count alike. A calibrated conversion weights inputs by their
    covariance; their mean goes exactly into the value bias and, for keys, vanishes in the softmax. The conversion is
    exact when the rank reaches that of all keys and values together. The logits keep their scale.

    Attributes:
        rank: Size of the latent.
    """

    name: ClassVar[str] = "latent"

    rank: Size

    def check(self, attention: Attention, width: int, memory_width: int) -> None:
        source = multi_head_of(attention)
        require_no_rotary(source, "latent")
        size = source.num_heads * (source.head_dim + source.values)
        require_rank("rank", self.rank, min(memory_width, size), "min(width, num_heads * (head_dim + value_dim))")

    def convert(self, sites: Sequence[Site], seed: int) -> list[Converted]:
        return [self._layer(site) for site in sites]

    def _layer(self, site: Site) -> Converted:
        source = site.multi_head
        down, up_key, up_value = _joint(site, self.rank)
        biased = source.projection_bias or site.moments is not None
        config = Latent(
            num_heads=source.num_heads,
            head_ids=source.head_ids,
            rank=self.rank,
            head_dim=source.head_dim,
            value_dim=source.value_dim,
            scale=source.scale,
            projection_bias=biased,
            output_bias=source.output_bias,
        )
        kept = {name: site.params[name] for name in ("query", "output", "output_bias") if name in site.params}
        params: Params = kept | {"latent": down, "key": up_key, "value": up_value}
        if biased:
            value_bias = bias_or_zeros(site, "value")
            if site.moments is not None:
                mean = jnp.asarray(site.moments.key_mean, jnp.float32)
                lost = site.params["value"] - jnp.einsum("mr,rhv->mhv", down, up_value)
                value_bias = value_bias + jnp.einsum("m,mhv->hv", mean, lost)
            params |= {"query_bias": bias_or_zeros(site, "query"), "value_bias": value_bias}
        return Converted(config, params)


def _joint(site: Site, rank: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return W_C `[memory width, rank]`, W_UK `[rank, heads, head_dim]` and W_UV `[rank, heads, value_dim]`."""
    key, value = site.params["key"], site.params["value"]
    read, written = site.params["query"], jnp.moveaxis(site.params["output"], 2, 0)
    root = None if site.moments is None else covariance_root(site.moments.key_covariance)
    if site.moments is not None:
        moments = site.moments.query_covariance + np.outer(site.moments.query_mean, site.moments.query_mean)
        read = jnp.einsum("de,ehi->dhi", covariance_root(moments).root, read)
    parts = [_counted(key, read), _counted(value, written)]
    if root is not None:
        parts = [root.root @ part for part in parts]
    # Keys and values enter with equal weight, whatever their units.
    norms = [jnp.maximum(jnp.linalg.norm(part), 1e-30) for part in parts]
    basis, _ = low_rank(jnp.concatenate([part / norm for part, norm in zip(parts, norms, strict=True)], axis=1), rank)
    down, seen = (basis, basis) if root is None else (root.inverse @ basis, root.root @ basis)
    return down, jnp.einsum("mr,mhd->rhd", seen, key), jnp.einsum("mr,mhv->rhv", seen, value)


def _counted(made: jax.Array, used: jax.Array) -> jax.Array:
    """Return W_h (U_h^T U_h)^(1/2) of all heads side by side, so that errors of W_h count after U_h."""
    values, vectors = jnp.linalg.eigh(gram(jnp.swapaxes(used, 0, 1)))
    root = jnp.einsum("hij,hj,hkj->hik", vectors, jnp.sqrt(jnp.maximum(values, 0.0)), vectors)
    return jnp.einsum("mhi,hij->mhj", made, root).reshape(made.shape[0], -1)


@functools.partial(jax.jit, static_argnums=(1,))
def low_rank(matrix: jax.Array, rank: int) -> tuple[jax.Array, jax.Array]:
    """Return the best X Y of a rank for a `[rows, columns]` matrix: X `[rows, rank]` orthonormal, Y `[rank, columns]`.

    Columns beyond the matrix's own size are zero.
    """
    with jax.default_matmul_precision("highest"):
        u, values, vt = jnp.linalg.svd(matrix, full_matrices=False)
        left, right = u[:, :rank], values[:rank, None] * vt[:rank]
        missing = rank - left.shape[1]
        return jnp.pad(left, ((0, 0), (0, missing))), jnp.pad(right, ((0, missing), (0, 0)))
