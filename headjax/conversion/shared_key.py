"""What conversions to collaborative and Tucker attention share: everything but the decomposition."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from headjax.attention import MultiHead
from headjax.conversion.moments import Root, covariance_root
from headjax.conversion.products import Products
from headjax.conversion.target import Site, bias_or_zeros, query_key_of
from headjax.core.tensors import Params


def scaled_query_key(site: Site) -> Products:
    """W_Q and W_K of a site, so that 1 / sqrt(head_dim) is what is left of the logits' scale."""
    products = query_key_of(site)
    return products._replace(left=products.left * carried_scale(site.multi_head))


def carried_scale(attention: MultiHead) -> float:
    """The layer's logit scale over 1 / sqrt(head_dim); 1 unless the layer has a scale of its own (T5)."""
    return attention.logit_scale * attention.head_dim**0.5


def roots(site: Site) -> tuple[Root, Root] | None:
    """Roots of the covariances that weight queries' and keys' inputs, when the site is calibrated.

    Only what is left of a query after its mean has to be approximated, because the mean query's logits go exactly into
    the content bias; and only what differs between the keys of a sequence.
    """
    if site.moments is None:
        return None
    return covariance_root(site.moments.query_covariance), covariance_root(site.moments.key_within)


def weighted(products: Products, weights: tuple[Root, Root] | None) -> Products:
    """C_Q^(1/2) A_h and C_K^(1/2) B_h: the tensor whose error is that of centred logits."""
    if weights is None:
        return products
    left, right = (
        jnp.einsum("de,ehi->dhi", weight.root, factor, precision="highest")
        for weight, factor in zip(weights, products, strict=True)
    )
    return Products(left, right)


def shared_key_fields(attention: MultiHead, *, content_bias: bool) -> dict[str, Any]:
    """The fields that a multi-head layer hands on to collaborative and Tucker attention."""
    return {
        "num_heads": attention.num_heads,
        "head_ids": attention.head_ids,
        "value_dim": attention.values,
        "head_dim": attention.head_dim,
        "content_bias": content_bias,
        "value_bias": attention.projection_bias,
        "output_bias": attention.output_bias,
    }


def shared_key_params(site: Site, approximation: Products | None) -> Params:
    """Values, output and content bias of the converted layer.

        u_h = W_K^h b_Q^h + (T_h - T'_h)^T mean(x)

    The first term is what b_Q adds to logits (section 3.3 of the paper; b_K adds the same to a whole row and is
    dropped). The second makes the mean query's logits exact when the site is calibrated.

    Args:
        site: the layer.
        approximation: T'_h; None where it is exact.
    """
    names = ("value", "output", "value_bias", "output_bias")
    kept: Params = {name: site.params[name] for name in names if name in site.params}
    if not has_content_bias(site, approximation):
        return kept
    exact = scaled_query_key(site)
    bias = bias_or_zeros(site, "query") * carried_scale(site.multi_head)
    content = jnp.einsum("mhd,hd->mh", exact.right, bias, precision="highest")
    if site.moments is not None and approximation is not None:
        mean = jnp.asarray(site.moments.query_mean, jnp.float32)
        content = content + _seen_by(exact, mean) - _seen_by(approximation, mean)
    return kept | {"content_bias": content}


def has_content_bias(site: Site, approximation: Products | None) -> bool:
    """Whether a converted layer needs a content bias."""
    corrected = site.moments is not None and approximation is not None
    return corrected or site.multi_head.projection_bias


def _seen_by(products: Products, query: jax.Array) -> jax.Array:
    """T_h^T x of every head, `[columns, heads]`."""
    inner = jnp.einsum("dhi,d->hi", products.left, query, precision="highest")
    return jnp.einsum("mhi,hi->mh", products.right, inner, precision="highest")
