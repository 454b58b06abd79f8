"""What heads could share: the captured variance of queries and keys."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.conversion.collaborative import scaled_query_key
from headjax.conversion.decomposition import head_svd
from headjax.conversion.products import Products, in_float32
from headjax.conversion.target import (
    HeadLayer,
    Site,
    as_multi_head,
    find_layers,
    layers_at,
    multi_head_of,
)
from headjax.core.errors import ConfigError
from headjax.core.programs import one_blas_thread
from headjax.models.model import Model


class Captured(NamedTuple):
    """Shares of a layer's squared norm that the best of rank 1, 2, ... capture (Cordonnier et al. 2020, figure 1)."""

    query: np.ndarray  # [rank], W_Q of all heads side by side
    key: np.ndarray  # [rank], W_K of all heads side by side
    product: np.ndarray  # [rank], W_Q W_K^T, the sum over heads
    product_by_head: np.ndarray  # [heads, head_dim], W_Q^h W_K^hT


def captured_variance(model: Model) -> dict[HeadLayer, Captured]:
    """Return the captured variance of every multi-head or grouped layer, by (head stack, layer), without centring."""
    found = {}
    for place, module in layers_at(model, find_layers(model, None, None)).items():
        inner = in_float32(module)
        try:
            multi_head_of(inner.kind)
        except ConfigError as error:
            raise ConfigError(f"{place[0]}/{place[1]}: {error}") from None
        with one_blas_thread():
            found[place] = _captured(scaled_query_key(Site(as_multi_head(inner))))
    return found


def rank_for(captured: np.ndarray, share: float) -> np.ndarray:
    """Return the smallest rank that captures at least this share, along the last dimension."""
    return (np.asarray(captured) < share - 1e-6).sum(axis=-1) + 1


def _captured(products: Products) -> Captured:
    left, right = (factor.reshape(factor.shape[0], -1) for factor in products)
    singular = functools.partial(jnp.linalg.svd, compute_uv=False)
    with jax.default_matmul_precision("highest"):
        values = [
            singular(left),
            singular(right),
            singular(jnp.linalg.qr(left)[1] @ jnp.linalg.qr(right)[1].T),
            head_svd(products)[1],
        ]
    return Captured(*(_cumulative(np.asarray(value, np.float64)) for value in values))


def _cumulative(values: np.ndarray) -> np.ndarray:
    squares = np.square(values)
    return np.cumsum(squares, axis=-1) / np.maximum(squares.sum(axis=-1, keepdims=True), 1e-300)
