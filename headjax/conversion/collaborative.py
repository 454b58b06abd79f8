"""Multi-head to collaborative attention by CP decompositions, and the variance that shared dimensions capture."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.conversion.calibration import Root, covariance_root
from headjax.conversion.decomposition import CP, Solver, fit_layers, head_svd
from headjax.conversion.target import (
    ConversionInput,
    Products,
    Target,
    as_multi_head,
    bias_or_zeros,
    find_layers,
    in_float32,
    layers_at,
    multi_head_of,
    require_rank,
)
from headjax.core.errors import ConfigError, require
from headjax.core.fields import Size
from headjax.core.programs import one_blas_thread
from headjax.core.tensors import Params
from headjax.heads.head_id import HeadLayer
from headjax.models.model import Model
from headjax.nn import CollaborativeAttention, Kind
from headjax.nn.module import AttentionModule


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToCollaborative(Target):
    """All heads share one query and one key projection (Cordonnier et al. 2020, section 3.3).

        W_Q^h W_K^hT ~ W_Q diag(m_h) W_K^T,   W_Q [width, shared_dim], W_K [memory width, shared_dim]

    The logits stay divided by the square root of the original head_dim at every shared_dim. b_K vanishes in the
    softmax and b_Q becomes the content bias W_K^h b_Q^h, both exactly. At shared_dim = num_heads * head_dim the
    function stays the same: the heads' own weights stand side by side, mixed by blocks of ones. Below that size a
    calibrated conversion minimises the error of centred logits, any other the error of the weights.

    Layers whose keys rotate with their positions are refused: a map across rotary frequencies does not commute with
    rotation.

    Attributes:
        shared_dim: Size of the shared queries and keys, at most num_heads * head_dim.
        solver: Solver of the decomposition.
    """

    name: ClassVar[str] = "collaborative"

    shared_dim: Size
    solver: Solver = Solver()

    def check(self, attention: Kind, width: int, memory_width: int) -> None:
        source = multi_head_of(attention)
        require(source.rotary is None, "rotary", "rotates between W_Q and W_K, so they cannot be shared")
        require_rank("shared_dim", self.shared_dim, source.num_heads * source.head_dim, "num_heads * head_dim")

    def convert(self, layers: Sequence[ConversionInput], seed: int) -> list[AttentionModule]:
        factors_of: dict[int, CP] = {}
        for members in same_shapes(layers):
            full = self.shared_dim == layers[members[0]].params["query"][0].size
            factors = [_side_by_side(layers[i]) for i in members] if full else self._fit(layers, members)
            factors_of |= dict(zip(members, factors, strict=True))
        return [self._layer(layer, factors_of[i]) for i, layer in enumerate(layers)]

    def _fit(self, layers: Sequence[ConversionInput], members: Sequence[int]) -> list[CP]:
        inputs = [(scaled_query_key(layers[i]), roots(layers[i])) for i in members]
        with one_blas_thread():
            factors: list[CP] = jax.block_until_ready(_fitted(inputs, self.shared_dim, self.solver))
        return factors

    def _layer(self, layer: ConversionInput, factors: CP) -> AttentionModule:
        source = layer.attention
        exact = self.shared_dim == source.num_heads * source.head_dim
        content = _content_bias(layer, None if exact else factors)
        names = ("value", "output", "value_bias")
        params: Params = {name: layer.params[name] for name in names if name in layer.params}
        params |= {"query": factors.left, "key": factors.right, "mixing": factors.mixing}
        if content is not None:
            params["content_bias"] = content
        config = Kind(
            CollaborativeAttention,
            num_heads=source.num_heads,
            head_ids=source.head_ids,
            shared_dim=self.shared_dim,
            head_dim=source.head_dim,
            value_dim=source.values,
            content_bias=content is not None,
            value_bias=source.projection_bias,
            output_bias=source.output_bias,
        )
        return layer.module.like(config, params)


def same_shapes(layers: Sequence[ConversionInput]) -> list[list[int]]:
    """Return the positions of layers with equal shapes of queries and keys, which one call can decompose."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, layer in enumerate(layers):
        groups.setdefault((*layer.params["query"].shape, layer.params["key"].shape[0]), []).append(i)
    return list(groups.values())


def _side_by_side(layer: ConversionInput) -> CP:
    """Return the concatenated queries and keys of the heads, mixed by blocks of ones (section 3.1)."""
    left, right = scaled_query_key(layer)
    heads, dim = left.shape[1:]
    owner = jnp.arange(heads * dim)[None, :] // dim == jnp.arange(heads)[:, None]
    return CP(left.reshape(left.shape[0], -1), owner.astype(left.dtype), right.reshape(right.shape[0], -1))


def scaled_query_key(layer: ConversionInput) -> Products:
    """Return W_Q and W_K of a layer, scaled so that logits still have to be divided by sqrt(head_dim)."""
    return Products(layer.params["query"] * carried_scale(layer.attention), layer.params["key"])


def carried_scale(attention: Kind) -> float:
    """Return the layer's logit scale over 1 / sqrt(head_dim); 1 unless the layer has another scale (T5)."""
    return attention.logit_scale * attention.head_dim**0.5


def roots(layer: ConversionInput) -> tuple[Root, Root] | None:
    """Return the roots of the covariances that weight the inputs of queries and keys; None without calibration."""
    if layer.moments is None:
        return None
    # The mean query's logits go exactly into the content bias; the mean key of a sequence adds the same to a whole row.
    return covariance_root(layer.moments.query_covariance), covariance_root(layer.moments.key_within)


def weighted(products: Products, weights: tuple[Root, Root] | None) -> Products:
    """Return C_Q^(1/2) A_h and C_K^(1/2) B_h: the error of this tensor is the error of centred logits."""
    if weights is None:
        return products
    left, right = (
        jnp.einsum("de,ehi->dhi", weight.root, factor, precision="highest")
        for weight, factor in zip(weights, products, strict=True)
    )
    return Products(left, right)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _fitted(inputs: Sequence[tuple[Products, tuple[Root, Root] | None]], rank: int, solver: Solver) -> list[CP]:
    """Return the factors of layers of equal shapes, in one program."""
    products = [weighted(*each) for each in inputs]
    fit = fit_layers(Products(*map(jnp.stack, zip(*products, strict=True))), rank, solver).factors
    factors = [jax.tree.map(lambda array, i=i: array[i], fit) for i in range(len(inputs))]
    return [
        factor
        if weight is None
        else factor._replace(left=weight[0].inverse @ factor.left, right=weight[1].inverse @ factor.right)
        for factor, (_, weight) in zip(factors, inputs, strict=True)
    ]


def _content_bias(layer: ConversionInput, factors: CP | None) -> jax.Array | None:
    """Return u_h = W_K^h b_Q^h + (T_h - T'_h)^T mean(x), the second term if calibrated; None where both vanish."""
    mean = None
    if layer.moments is not None and factors is not None:
        mean = jnp.asarray(layer.moments.query_mean, jnp.float32)
    elif not layer.attention.projection_bias:
        return None
    bias = bias_or_zeros(layer, "query") * carried_scale(layer.attention)
    return _content(scaled_query_key(layer), bias, factors, mean)


@jax.jit
def _content(exact: Products, bias: jax.Array, factors: CP | None, mean: jax.Array | None) -> jax.Array:
    content = jnp.einsum("mhd,hd->mh", exact.right, bias, precision="highest")
    if factors is not None and mean is not None:
        content = content + _logits_of(exact, mean) - _logits_of(factors.products(), mean)
    return content


def _logits_of(products: Products, query: jax.Array) -> jax.Array:
    """Return T_h^T x of every head, `[columns, heads]`."""
    inner = jnp.einsum("dhi,d->hi", products.left, query, precision="highest")
    return jnp.einsum("mhi,hi->mh", products.right, inner, precision="highest")


class Captured(NamedTuple):
    """Shares of a layer's squared norm that the best of rank 1, 2, ... capture (Cordonnier et al. 2020, figure 1).

    Attributes:
        query: `[rank]`, of W_Q of all heads side by side.
        key: `[rank]`, of W_K of all heads side by side.
        product: `[rank]`, of W_Q W_K^T, the sum over heads.
        product_by_head: `[heads, head_dim]`, of W_Q^h W_K^hT.
    """

    query: np.ndarray
    key: np.ndarray
    product: np.ndarray
    product_by_head: np.ndarray


def captured_variance(model: Model) -> dict[HeadLayer, Captured]:
    """Return the captured variance of every multi-head or grouped layer, by (head stack, layer), without centring."""
    captured, singular_values = {}, functools.partial(jnp.linalg.svd, compute_uv=False)
    for place, module in layers_at(model, find_layers(model, None, None)).items():
        inner = in_float32(module)
        try:
            multi_head_of(inner.kind)
        except ConfigError as error:
            raise ConfigError(f"{place[0]}/{place[1]}: {error}") from None
        products = scaled_query_key(ConversionInput(as_multi_head(inner)))
        query, key = (factor.reshape(factor.shape[0], -1) for factor in products)
        with one_blas_thread(), jax.default_matmul_precision("highest"):
            values = [
                singular_values(query),
                singular_values(key),
                singular_values(jnp.linalg.qr(query)[1] @ jnp.linalg.qr(key)[1].T),
                head_svd(products)[1],
            ]
            squares = [np.square(np.asarray(value, np.float64)) for value in values]
        totals = (np.maximum(each.sum(axis=-1, keepdims=True), 1e-300) for each in squares)
        captured[place] = Captured(
            *(np.cumsum(each, axis=-1) / total for each, total in zip(squares, totals, strict=True))
        )
    return captured


def rank_for(captured: np.ndarray, share: float) -> np.ndarray:
    """Return the smallest rank that captures at least this share, along the last dimension."""
    return (np.asarray(captured) < share - 1e-6).sum(axis=-1) + 1
