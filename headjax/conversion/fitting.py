"""The best smaller heads for given ones: keys or values shared within groups of heads, or of fewer dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from headjax.conversion.moments import Root, covariance_root
from headjax.conversion.target import Site, bias_or_zeros
from headjax.core.tensors import Params

Groups = Sequence[Sequence[int]]
"""Positions of the heads that share a key and a value, group by group."""


class Extended(NamedTuple):
    """Weights with their bias as one more row, in coordinates in which inputs have identity covariance and mean zero.

    Attributes:
        rows: `[inputs + 1, heads, dim]`; the last row is what the mean input gives, bias included.
        inverse: `[inputs, inputs]` back to the inputs' own coordinates; None is the identity.
        mean: `[inputs]` the mean input; None is zero.
    """

    rows: jax.Array
    inverse: jax.Array | None
    mean: jax.Array | None

    def restore(self, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Weights `[inputs, ...]` and bias `[...]` of `[inputs + 1, ...]` rows in these coordinates."""
        weight, bias = rows[:-1], rows[-1]
        if self.inverse is not None:
            weight = jnp.tensordot(self.inverse, weight, 1)
        return weight, bias if self.mean is None else bias - jnp.tensordot(self.mean, weight, 1)


def fit_query_key(site: Site, groups: Groups, dim: int) -> Params:
    """Queries of every head and one key per group, of size `dim`, whose logits are nearest to the layer's.

        minimise  sum_(h in g) ||[W_Q^h; b_Q^h] W_K^hT - [W_Q'^h; b_Q'^h] W_K'^gT||^2

    In closed form: W_K'^g spans the leading right singular vectors of the group's slices one below another. Calibrated,
    the error is that of logits over inputs of the covariances seen. There is no b_K', which softmax would drop.

    Args:
        site: a multi-head layer without rotary embeddings.
        groups: the heads that share a key.
        dim: size of the new queries and keys.

    Returns:
        `query [width, heads, dim]` and `query_bias [heads, dim]` with heads in the order of the groups,
        `key [memory width, groups, dim]`.
    """
    query, (seen, root) = extended(site, "query"), _seen_keys(site)
    queries, keys = [], []
    for group in groups:
        rows, inner = query.rows[:, jnp.asarray(group)], seen[:, jnp.asarray(group)]
        basis = leading_columns(rows, inner, dim)
        queries.append(jnp.einsum("rhi,mhi,mk->rhk", rows, inner, basis))
        keys.append(basis if root is None else root.inverse @ basis)
    weight, bias = query.restore(jnp.concatenate(queries, axis=1))
    return {"query": weight, "query_bias": bias, "key": jnp.stack(keys, axis=1)}


def fit_value_output(site: Site, groups: Groups, dim: int) -> Params:
    """One value per group and outputs of every head, of size `dim`, that write what is nearest to the layer's.

        minimise  sum_(h in g) ||[W_V^h; b_V^h] W_O^h - [W_V'^g; b_V'^g] W_O'^h||^2

    In closed form, as `fit_query_key`. Because every row of probabilities sums to one, what the mean input loses is a
    constant and goes into the output bias, where there is one.

    Returns:
        `value [memory width, groups, dim]`, `value_bias [groups, dim]`, `output [heads, dim, width]` with heads in the
        order of the groups, and `output_bias [width]` where the layer has one.
    """
    value = extended(site, "value")
    output = jnp.moveaxis(site.params["output"], 2, 0)
    shared, outputs, lost = [], [], jnp.zeros(output.shape[0])
    for group in groups:
        rows, written = value.rows[:, jnp.asarray(group)], output[:, jnp.asarray(group)]
        basis = leading_columns(written, rows, dim)
        new = jnp.einsum("mk,mhi,whi->whk", basis, rows, written)
        shared.append(basis)
        outputs.append(new)
        constant = jnp.einsum("hi,whi->w", rows[-1], written)
        lost = lost + constant - jnp.einsum("k,whk->w", basis[-1], new)
    weight, bias = value.restore(jnp.stack(shared, axis=1))
    params = {"value": weight, "value_bias": bias, "output": jnp.moveaxis(jnp.concatenate(outputs, axis=1), 0, 2)}
    if "output_bias" in site.params:
        params["output_bias"] = site.params["output_bias"] + lost
    return params


def sharing_losses(site: Site) -> tuple[jax.Array, jax.Array]:
    """What sharing costs every pair of heads: the least of `fit_query_key` and of `fit_value_output` for both alone.

    Returns:
        Two `[heads, heads]`, relative to a head's mean squared norm.
    """
    keys = _pair_losses(extended(site, "query").rows, _seen_keys(site)[0])
    written = jnp.moveaxis(site.params["output"], 2, 0)
    return keys, _pair_losses(written, extended(site, "value").rows)


def extended(site: Site, name: str) -> Extended:
    """W_Q or W_V with its bias as one more row, see `Extended`."""
    weight, bias = site.params[name], bias_or_zeros(site, name)
    if site.moments is None:
        return Extended(jnp.concatenate([weight, bias[None]]), None, None)
    of_query = name == "query"
    covariance = site.moments.query_covariance if of_query else site.moments.key_covariance
    mean = jnp.asarray(site.moments.query_mean if of_query else site.moments.key_mean, jnp.float32)
    root = covariance_root(covariance)
    rows = [jnp.tensordot(root.root, weight, 1), (bias + jnp.tensordot(mean, weight, 1))[None]]
    return Extended(jnp.concatenate(rows), root.inverse, mean)


def leading_columns(left: jax.Array, right: jax.Array, dim: int) -> jax.Array:
    """Orthonormal `[columns, dim]` spanning most of the slices L_h R_h^T taken together, from their Gram matrices."""
    _, _, vt = jnp.linalg.svd(_compressed(left, right).reshape(-1, right.shape[0]), full_matrices=False)
    basis = vt[:dim].T
    return jnp.pad(basis, ((0, 0), (0, dim - basis.shape[1])))


def _compressed(left: jax.Array, right: jax.Array) -> jax.Array:
    """Slices L_h R_h^T as `[heads, dim, columns]`, in an orthonormal basis of each L_h."""
    _, inner = jnp.linalg.qr(jnp.swapaxes(left, 0, 1))
    return jnp.einsum("hij,mhj->him", inner, right)


@jax.jit
def _pair_losses(left: jax.Array, right: jax.Array) -> jax.Array:
    slices = _compressed(left, right)
    dim = slices.shape[1]

    def loss(one: jax.Array, other: jax.Array) -> jax.Array:
        stacked = jnp.concatenate([one, other])
        values = jnp.linalg.eigvalsh(stacked @ stacked.T)
        return jnp.maximum(values[:-dim], 0.0).sum()

    pairs = jax.lax.map(lambda one: jax.vmap(lambda other: loss(one, other))(slices), slices)
    return pairs / jnp.maximum(jnp.square(slices).sum(axis=(1, 2)).mean(), 1e-30)


def _seen_keys(site: Site) -> tuple[jax.Array, Root | None]:
    """W_K in coordinates in which inputs have identity covariance, and the way back."""
    key = site.params["key"]
    if site.moments is None:
        return key, None
    root = covariance_root(site.moments.key_within)
    return jnp.tensordot(root.root, key, 1), root
