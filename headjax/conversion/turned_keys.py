"""Keys that turn, in fewer numbers: one key for several heads, and the frequencies of a head that matter most."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from headjax.conversion.sharing import Groups
from headjax.conversion.target import Site
from headjax.conversion.turning import (
    TINY,
    Turning,
    as_complex,
    in_pairs,
    turning_keys,
    weights_and_bias,
)
from headjax.core.tensors import Params

SWEEPS = 4
"""Rounds of alternating least squares."""

RIDGE = 1e-9
"""Share of the mean of a diagonal that is added to it, so that equations have one solution."""


def fit_turning(site: Site, groups: Groups) -> Params:
    """Return queries of every head and one key per group that turn alike, with the least error of logits."""
    turning, rotary = turning_keys(site), site.attention.rotary
    asked = as_complex(in_pairs(rotary, weights_and_bias(site, "query")))
    queries, keys = [], []
    for group in groups:
        index = np.asarray(group)
        rows, factors = shared_key(turning.of(index))
        queries.append(asked[:, index] * factors.conj())  # conj(q) c s = conj(conj(c) q) s
        keys.append(rows[:, None])
    params: Params = {}
    for name, parts in (("query", queries), ("key", keys)):
        found = np.concatenate(parts, axis=1)
        real = rotary.join(jnp.asarray(found.real, jnp.float32), jnp.asarray(found.imag, jnp.float32))
        params |= {name: real[:-1], f"{name}_bias": real[-1]}
    return params


def shared_key(turning: Turning) -> tuple[np.ndarray, np.ndarray]:
    """Return one key s for several KV heads, and factors c that turn it into theirs, both complex at each frequency."""
    # minimise  sum over rows i and KV heads g of e_ig^T Gamma_ig e_ig,  e_ig = k_ig - c_g s_i, Gamma as in `Turning`
    # Complex factors commute with turning. From the leading eigenvectors c and s are solved in turns.
    if turning.rows.shape[1] == 1:
        return as_complex(turning.back @ turning.rows[:, 0]), np.ones((1, turning.frequencies), complex)
    target = turning.counted(turning.rows)
    factors = np.linalg.eigh(turning.by_frequency())[1][:, :, -1].T / np.sqrt(turning.sizes)
    made = _best_key(turning, target, factors)
    for _ in range(SWEEPS):
        factors = _best_factors(turning, target, made)
        made = _best_key(turning, target, factors)
    size = np.maximum(np.linalg.norm(factors, axis=0), TINY)
    return as_complex(turning.back @ made) * size, factors / size


def _best_key(turning: Turning, target: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return the s `[rows, head_dim]` with the least error for these c, row by row."""
    # A row of share w has the normal equations P - (1 - w) D; where P is the identity, D diagonal, all rows are solved.
    # k = (c' + i c'')(s' + i s''), real parts before imaginary ones.
    real, imaginary = (part[:, :, None] * np.eye(turning.frequencies) for part in (factors.real, factors.imag))
    spread = np.concatenate([np.concatenate([real, imaginary], 2), np.concatenate([-imaginary, real], 2)], 1)
    right = np.einsum("ngd,gad->na", target, spread)
    whole = np.einsum("gai,gij,gbj->ab", spread, turning.moving, spread, optimize=True)
    less = np.einsum("gai,gij,gbj->ab", spread, turning.moving - turning.still, spread, optimize=True)
    whole.flat[:: len(whole) + 1] += RIDGE * max(float(np.trace(whole)) / len(whole), TINY)
    root = np.linalg.inv(np.linalg.cholesky(whole))
    share, turn = np.linalg.eigh(root @ less @ root.T)
    basis = root.T @ turn
    kept = 1.0 - (1.0 - turning.within)[:, None] * np.clip(share, 0.0, 1.0)[None]
    return (right @ basis / np.maximum(kept, RIDGE)) @ basis.T


def _best_factors(turning: Turning, target: np.ndarray, made: np.ndarray) -> np.ndarray:
    """Return the c `[kv_heads, frequencies]` with the least error for this s, KV head by KV head."""
    count = turning.frequencies
    grams = [made.T @ made, made.T @ (turning.within[:, None] * made)]
    grams = [gram.reshape(2, count, 2, count) for gram in grams]
    found = np.empty((target.shape[1], count), complex)
    for head, wanted in enumerate(np.moveaxis(target, 1, 0)):
        costs = (turning.still[head], turning.moving[head] - turning.still[head])
        normal = _normal(grams[0], costs[0]) + _normal(grams[1], costs[1])
        met = np.diagonal((made.T @ wanted).reshape(2, count, 2, count), axis1=1, axis2=3)  # [2, 2, frequencies]
        right = np.concatenate([met[0, 0] + met[1, 1], met[0, 1] - met[1, 0]])
        normal.flat[:: len(normal) + 1] += RIDGE * max(float(np.trace(normal)) / len(normal), TINY)
        found[head] = np.linalg.solve(normal, right).reshape(2, count).T @ (1.0, 1.0j)
    return found


def _normal(gram: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """Return the normal equations `[2 F, 2 F]` of c's parts, from products `[2, F, 2, F]` of s and one head's costs."""
    count = gram.shape[1]
    blocks = cost.reshape(2, count, 2, count)
    # Part a of c and part p of s give part o of the key with this sign: (c' + i c'')(s' + i s'').
    signs = ((0, 0, 0, 1.0), (0, 1, 1, 1.0), (1, 1, 0, -1.0), (1, 0, 1, 1.0))
    normal = np.zeros((2, count, 2, count))
    for a, p, o, sign in signs:
        for b, q, r, other in signs:
            normal[a, :, b] += sign * other * gram[p, :, q] * blocks[o, :, r]
    return normal.reshape(2 * count, 2 * count)


def keep_frequencies(site: Site, count: int) -> tuple[tuple[tuple[int, ...], ...], Params]:
    """Return the `count` frequencies of every head that carry most of its squared logits, and the weights of those."""
    energy = np.diagonal(turning_keys(site).by_frequency(), axis1=1, axis2=2).real
    kept = np.sort(np.argsort(-energy, axis=0, kind="stable")[:count], axis=0).T
    rotary, size = site.attention.rotary, site.params["key"].shape[-1]
    dimensions = np.asarray(rotary.join(*(side[kept] for side in rotary.split(jnp.arange(size)))))
    chosen: Params = {}
    for name in ("query", "key", "query_bias", "key_bias"):
        if name in site.params:
            array = site.params[name]
            index = jnp.asarray(dimensions).reshape((1,) * (array.ndim - 2) + dimensions.shape)
            chosen[name] = jnp.take_along_axis(array, index, axis=-1)
    return tuple(tuple(int(number) for number in head) for head in kept), chosen


def turning_losses(site: Site) -> np.ndarray:
    """Return the cost of sharing one key for every pair of heads, `[heads, heads]`: the minima of `fit_turning`."""
    # Phases are taken as equally likely, so that frequencies do not interact.
    weighted = turning_keys(site).by_frequency()
    own = np.diagonal(weighted, axis1=1, axis2=2).real
    mean, half = own[:, :, None] + own[:, None, :], own[:, :, None] - own[:, None, :]
    lost = (mean - np.sqrt(np.square(half) + 4.0 * np.square(np.abs(weighted)))) / 2.0
    return np.maximum(lost, 0.0).sum(axis=0) / max(float(own.sum(axis=0).mean()), TINY)
