"""Matrix products A_h B_h^T, one per head and never multiplied out: their algebra, and those of any formulation."""

from __future__ import annotations

import functools
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from headjax.core.errors import ConfigError
from headjax.core.serialize import kind_of
from headjax.nn import (
    CollaborativeAttention,
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
)
from headjax.nn.module import AttentionModule
from headjax.nn.norms import Normalisation

Tree = TypeVar("Tree")


class Products(NamedTuple):
    """Tensor of slices T_h = A_h B_h^T, held as its factors: W_Q^h W_K^hT of logits, W_V^h W_O^h of outputs."""

    left: jax.Array  # A [..., rows, heads, dim]
    right: jax.Array  # B [..., columns, heads, dim]

    def by_head(self) -> tuple[jax.Array, jax.Array]:
        """Return A and B as `[..., heads, rows, dim]` and `[..., heads, columns, dim]`."""
        return jnp.swapaxes(self.left, -3, -2), jnp.swapaxes(self.right, -3, -2)


def squared_norm(products: Products) -> jax.Array:
    """Return sum_h ||A_h B_h^T||^2 of one tensor, from the Gram matrices: sum_h <A_h^T A_h, B_h^T B_h>."""
    left, right = products.by_head()
    return (gram(left) * gram(right)).sum()


def squared_distance(products: Products, others: Products) -> jax.Array:
    """Return sum_h ||T_h - T'_h||^2 of two tensors of equal shape."""
    # Slices are subtracted: inner products would lose everything below the square root of the rounding error.
    left, right = products.by_head()
    other_left, other_right = others.by_head()

    def one_head(factors: tuple[jax.Array, ...]) -> jax.Array:
        a, b, c, d = factors
        return jnp.square(a @ b.T - c @ d.T).sum()

    return jax.lax.map(one_head, (left, right, other_left, other_right)).sum()


@jax.jit
def relative_distance(products: Products, others: Products) -> jax.Array:
    """Return ||T - T'|| / ||T|| in the Frobenius norm; 0 where both are zero."""
    with jax.default_matmul_precision("highest"):
        distance, norm = squared_distance(products, others), squared_norm(products)
    return jnp.sqrt(distance / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))


def gram(matrix: jax.Array) -> jax.Array:
    """Return M^T M over the last two dimensions."""
    return jnp.swapaxes(matrix, -1, -2) @ matrix


def join(factors: jax.Array, mixed: jax.Array) -> jax.Array:
    """Return sum_h F_h X_h: `[rows, heads, dim]` by `[heads, dim, rank]` to `[rows, rank]`."""
    return factors.reshape(factors.shape[0], -1) @ mixed.reshape(-1, mixed.shape[-1])


def project(factors: jax.Array, basis: jax.Array) -> jax.Array:
    """Return F_h^T X of every head: `[rows, heads, dim]` and `[rows, rank]` to `[heads, dim, rank]`."""
    flat = factors.reshape(factors.shape[0], -1).T @ basis
    return flat.reshape(*factors.shape[1:], basis.shape[-1])


def in_float32(tree: Tree) -> Tree:
    """Return a module, or any tree of arrays, with arrays in float32."""
    return jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), tree)


def query_key(module: AttentionModule) -> Products:
    """Return the logits' forms x T_h y^T, T_h = scale * W_Q^h W_K^hT, at equal positions, without biases or norms."""
    return _query_key(in_float32(module))


def value_output(module: AttentionModule) -> Products:
    """Return the linear maps from inputs to outputs of heads, y T_h: T_h = W_V^h W_O^h, without biases."""
    module = in_float32(module)
    return Products(_values(module), jnp.moveaxis(module.output_matrices(), 2, 0))


@functools.singledispatch
def _query_key(module: AttentionModule) -> Products:
    raise ConfigError(f"attention: {kind_of(module.kind)} has no products of queries and keys")


@functools.singledispatch
def _values(module: AttentionModule) -> jax.Array:
    """Return W_V^h of every head, `[memory width, heads, value_dim]`."""
    raise ConfigError(f"attention: {kind_of(module.kind)} has no products of values and outputs")


@_query_key.register
def _(module: GroupedAttention) -> Products:
    query, key = module.query[...], module.key[...]
    if module.query_norm is not None:
        query = query * gain(module.query_norm)
    if module.key_norm is not None:
        key = key * gain(module.key_norm)
    return Products(query * module.logit_scale, key[:, jnp.asarray(module.groups)])


@_values.register
def _(module: GroupedAttention) -> jax.Array:
    return module.value[:, jnp.asarray(module.groups)]


def gain(norm: Normalisation) -> jax.Array:
    """Return gamma `[1, 1, size]` of a norm of heads."""
    return norm.gain()[None, None]


@_query_key.register
def _(module: LatentAttention) -> Products:
    kind = module.kind
    if kind.query_rank is not None or kind.rotary is not None or kind.latent_norm is not None:
        raise ConfigError("attention: latent attention with norms, rotary parts or a query latent has no such products")
    key = jnp.einsum("mr,rhd->mhd", module.latent[...], module.key[...])
    return Products(module.query[...] * module.logit_scale, key)


@_values.register
def _(module: LatentAttention) -> jax.Array:
    return jnp.einsum("mr,rhv->mhv", module.latent[...], module.value[...])


@_query_key.register
def _(module: CollaborativeAttention) -> Products:
    left, key = module.query[:, None, :] * module.mixing[...][None], module.key[...]
    right = jnp.broadcast_to(key[:, None, :], (key.shape[0], *left.shape[1:]))
    return Products(left / module.kind.head_dim**0.5, right)


@_values.register
def _(module: CollaborativeAttention) -> jax.Array:
    return module.value[...]


@_query_key.register
def _(module: CompressedAttention) -> Products:
    inner = _query_key(module.inner)
    return inner._replace(right=jnp.einsum("mr,rhd->mhd", module.latent[...], inner.right))


@_values.register
def _(module: CompressedAttention) -> jax.Array:
    return jnp.einsum("mr,rhv->mhv", module.latent[...], _values(module.inner))
