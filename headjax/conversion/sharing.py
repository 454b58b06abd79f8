"""Share keys and values among heads: the best shared ones, and groups of heads."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.conversion.calibration import Root, covariance_root
from headjax.conversion.target import ConversionInput, bias_or_zeros
from headjax.core.programs import one_by_one
from headjax.core.tensors import Params

Groups = Sequence[Sequence[int]]
"""Positions of the heads of each group; a group shares a key and a value."""


class Extended(NamedTuple):
    """Weights with their bias as one more row, in coordinates of inputs of identity covariance and mean zero."""

    rows: jax.Array  # [inputs + 1, heads, dim]; the last row is the output for the mean input, bias included
    inverse: jax.Array | None  # [inputs, inputs], map back to the inputs' own coordinates; None is the identity
    mean: jax.Array | None  # [inputs], mean input; None is zero

    def restore(self, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return weights `[inputs, ...]` and bias `[...]` of `[inputs + 1, ...]` rows in these coordinates."""
        weight, bias = rows[:-1], rows[-1]
        if self.inverse is not None:
            weight = jnp.tensordot(self.inverse, weight, 1)
        return weight, bias if self.mean is None else bias - jnp.tensordot(self.mean, weight, 1)


def fit_query_key(layer: ConversionInput, groups: Groups, dim: int) -> Params:
    """Return queries of every head and one key per group, of size `dim`, whose logits are nearest to the layer's."""
    # minimise  sum_(h in g) ||[W_Q^h; b_Q^h] W_K^hT - [W_Q'^h; b_Q'^h] W_K'^gT||^2
    # W_K'^g spans the leading right singular vectors of the group's slices, one below another. b_K' would vanish.
    query, (seen, root) = extended(layer, "query"), seen_keys(layer)
    queries, keys = [], []
    for group in groups:
        rows, inner = query.rows[:, jnp.asarray(group)], seen[:, jnp.asarray(group)]
        basis = leading_columns(rows, inner, dim)
        queries.append(jnp.einsum("rhi,mhi,mk->rhk", rows, inner, basis))
        keys.append(basis if root is None else root.inverse @ basis)
    weight, bias = query.restore(jnp.concatenate(queries, axis=1))
    return {"query": weight, "query_bias": bias, "key": jnp.stack(keys, axis=1)}


def fit_value_output(layer: ConversionInput, groups: Groups, dim: int) -> Params:
    """Return one value per group and outputs of every head, of size `dim`, whose result is nearest to the layer's."""
    # minimise  sum_(h in g) ||[W_V^h; b_V^h] W_O^h - [W_V'^g; b_V'^g] W_O'^h||^2, as in `fit_query_key`
    # Rows of probabilities sum to one: the error for the mean input is a constant, which the output bias takes.
    value = extended(layer, "value")
    output = jnp.moveaxis(layer.params["output"]["kernel"], 2, 0)
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
    output_params = {"kernel": jnp.moveaxis(jnp.concatenate(outputs, axis=1), 0, 2)}
    if "bias" in layer.params["output"]:
        output_params["bias"] = layer.params["output"]["bias"] + lost
    return {"value": weight, "value_bias": bias, "output": output_params}


def sharing_losses(layer: ConversionInput) -> tuple[jax.Array, jax.Array]:
    """Return the cost of sharing for every pair of heads: the minima of both fits of the pair."""
    keys = _pair_losses(extended(layer, "query").rows, seen_keys(layer)[0])
    written = jnp.moveaxis(layer.params["output"]["kernel"], 2, 0)
    return keys, _pair_losses(written, extended(layer, "value").rows)


def extended(layer: ConversionInput, name: str) -> Extended:
    """Return W_Q or W_V with its bias as one more row, see `Extended`."""
    weight, bias = layer.params[name], bias_or_zeros(layer, name)
    if layer.moments is None:
        return Extended(jnp.concatenate([weight, bias[None]]), None, None)
    of_query = name == "query"
    covariance = layer.moments.query_covariance if of_query else layer.moments.key_covariance
    mean = jnp.asarray(layer.moments.query_mean if of_query else layer.moments.key_mean, jnp.float32)
    root = covariance_root(covariance)
    rows = [jnp.tensordot(root.root, weight, 1), (bias + jnp.tensordot(mean, weight, 1))[None]]
    return Extended(jnp.concatenate(rows), root.inverse, mean)


@functools.partial(jax.jit, static_argnames="dim")
def leading_columns(left: jax.Array, right: jax.Array, dim: int) -> jax.Array:
    """Return orthonormal `[columns, dim]` that span most of the rows of all slices L_h R_h^T."""
    _, _, vt = jnp.linalg.svd(_compressed(left, right).reshape(-1, right.shape[0]), full_matrices=False)
    basis = vt[:dim].T
    return jnp.pad(basis, ((0, 0), (0, dim - basis.shape[1])))


def _compressed(left: jax.Array, right: jax.Array) -> jax.Array:
    """Return the slices L_h R_h^T as `[heads, dim, columns]`, in an orthonormal basis of each L_h."""
    inner = one_by_one(lambda matrix: jnp.linalg.qr(matrix)[1], jnp.swapaxes(left, 0, 1))
    return jnp.einsum("hij,mhj->him", inner, right)


@jax.jit
def _pair_losses(left: jax.Array, right: jax.Array) -> jax.Array:
    slices = _compressed(left, right)
    dim = slices.shape[1]

    def loss(first: jax.Array, second: jax.Array) -> jax.Array:
        stacked = jnp.concatenate([first, second])
        values = jnp.linalg.eigvalsh(stacked @ stacked.T)
        return jnp.maximum(values[:-dim], 0.0).sum()

    pairs = one_by_one(lambda first: one_by_one(lambda second: loss(first, second), slices), slices)
    return pairs / jnp.maximum(jnp.square(slices).sum(axis=(1, 2)).mean(), 1e-30)


def seen_keys(layer: ConversionInput) -> tuple[jax.Array, Root | None]:
    """Return W_K in coordinates in which inputs have identity covariance, and the root that leads back."""
    key = layer.params["key"]
    if layer.moments is None:
        return key, None
    root = covariance_root(layer.moments.key_within)
    return jnp.tensordot(root.root, key, 1), root


Partition = tuple[tuple[int, ...], ...]
"""Head positions, group by group."""


def consecutive(num_heads: int, groups: int) -> Partition:
    """Return groups of neighbouring heads: 0, 1 | 2, 3 | ..."""
    size = num_heads // groups
    return tuple(tuple(range(start, start + size)) for start in range(0, num_heads, size))


def best_partition(distances: np.ndarray, groups: int, *, seed: int = 0, restarts: int = 8) -> Partition:
    """Return groups of equal size with a low sum of distances, by the best exchanges from several partitions."""
    heads = distances.shape[0]
    generator = np.random.default_rng(seed)
    starts = [np.arange(heads)] + [generator.permutation(heads) for _ in range(restarts)]
    labels = np.arange(heads) * groups // heads
    improved = [_exchange(distances, labels[np.argsort(order)]) for order in starts]
    best = min(improved, key=lambda groups: distances[groups[:, None] == groups[None, :]].sum())
    parts = [tuple(int(head) for head in np.flatnonzero(best == group)) for group in range(groups)]
    return tuple(sorted(parts))


def _exchange(distances: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the groups after exchanges of two heads, the best one first, while the sum of distances falls."""
    labels, heads = labels.copy(), np.arange(len(labels))
    least = 1e-9 * max(float(np.abs(distances).max()), 1e-30)
    while True:
        near = distances @ (labels[:, None] == np.arange(labels.max() + 1))  # [head, group]
        moved = near[heads, labels][:, None] - near[:, labels]  # [i, j], by how much i costs less in j's group
        # The sums count i with itself and with j, but an exchange does not change the distance of i and j.
        to_itself = np.diagonal(distances)
        gains = moved + moved.T + 2.0 * distances - to_itself[:, None] - to_itself[None, :]
        gains[labels[:, None] == labels[None, :]] = -np.inf
        i, j = np.unravel_index(np.argmax(gains), gains.shape)
        if gains[i, j] <= least:
            return labels
        labels[[i, j]] = labels[[j, i]]
