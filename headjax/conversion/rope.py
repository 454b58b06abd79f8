"""Keys that rotate with their positions: the cost of errors, and fewer keys: shared ones, or some frequencies."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.conversion.target import ConversionInput, Groups
from headjax.core.tensors import Params
from headjax.nn import Kind
from headjax.nn.rotary import Rotary

DISTANCES = 256
"""Number of distances between query and key, from 0 on, that rotated keys are weighed for."""

TINY = 1e-30
RIDGE = 1e-4
"""Share of the mean eigenvalue that is added to the inputs' second moment, so that it has an inverse."""
LEAST_SEEN = 1e-3
"""Least share of a mean key that counts as if it differed from token to token."""
SWEEPS = 4
"""Rounds of alternating least squares."""

DAMPING = 1e-9
"""Share of the mean of a diagonal that is added to it, so that equations have one solution."""


class RotaryKeys(NamedTuple):
    """The heads' keys of a layer in coordinates of independent rows, and the cost of their errors. NumPy, float64.

    An error e of a key of head h adds u . e to the logit of a query at distance t, where u is the query rotated by t.
    The softmax does not see the mean over a row. For errors that differ from token to token the mean square that it
    sees is e^T G_h e, with

        G_h = mean over t of R(t) E[q_h q_h^T] R(t)^T,    t = 0, 1, ..., 255

    An error that all tokens of a sequence share counts without its mean over the distances, by

        H_h = G_h - M E[q_h q_h^T] M^T,    M = mean over t of R(t)

    which is near G_h at fast frequencies and near 0 at slow ones. Row i of `rows` differs from token to token in the
    share `within[i]` of its square, so it counts by within[i] G_h + (1 - within[i]) H_h. Terms between two frequencies
    vanish only where one of them rotates within the context. Errors at slow ones add up or cancel.

    Dimensions of a head lie with all first ones of the rotary pairs before all second ones.
    """

    rows: np.ndarray  # [rows, heads, head_dim], keys for independent inputs of unit variance
    within: np.ndarray  # [rows], share of each row's square that differs from token to token
    moving: np.ndarray  # G [heads, head_dim, head_dim]
    still: np.ndarray  # H [heads, head_dim, head_dim]
    back: np.ndarray  # [inputs + 1, rows], map from rows to weights; the last row of those is the bias

    @property
    def frequencies(self) -> int:
        """Number of rotary pairs."""
        return self.rows.shape[-1] // 2

    def of(self, keys: np.ndarray) -> RotaryKeys:
        """Return the keys of these heads alone."""
        return self._replace(rows=self.rows[:, keys], moving=self.moving[keys], still=self.still[keys])

    def times_costs(self, errors: np.ndarray) -> np.ndarray:
        """Return errors `[rows, heads, head_dim]` times within[i] G_h + (1 - within[i]) H_h."""
        still = np.einsum("ngi,gij->ngj", errors, self.still)
        return still + self.within[:, None, None] * np.einsum("ngi,gij->ngj", errors, self.moving - self.still)

    def by_frequency(self) -> np.ndarray:
        """Return the squared logits of pairs of heads, `[frequencies, heads, heads]`, for any phase."""
        moving, still = (_sizes(matrix) for matrix in (self.moving, self.still))
        seen = self.within[:, None, None] * moving + (1.0 - self.within[:, None, None]) * still
        weighted = as_complex(self.rows) * np.sqrt(seen)
        return np.einsum("ngf,nkf->fgk", weighted, weighted.conj())


def as_complex(array: np.ndarray) -> np.ndarray:
    """Return the pairs of the last dimension, all first ones before all second ones, as complex numbers."""
    first, second = np.split(array, 2, axis=-1)
    return first + 1j * second


def _sizes(matrix: np.ndarray) -> np.ndarray:
    """Return the cost of an error of one in a dimension, the mean of both in a pair, `[heads, frequencies]`."""
    size = np.diagonal(matrix, axis1=1, axis2=2).reshape(len(matrix), 2, -1).mean(axis=1)
    return np.maximum(size, 1e-9 * max(float(size.max()), TINY))


def is_fully_rotary(attention: Kind) -> bool:
    """Return whether all dimensions of the queries and keys rotate."""
    return attention.rotary is not None and attention.rotary.dim in (None, attention.head_dim)


def rotary_keys_of(layer: ConversionInput) -> RotaryKeys:
    """Return the keys of a multi-head layer all of whose dimensions rotate, with the cost of their errors."""
    rotary = layer.attention.rotary
    query, key = (in_pairs(rotary, layer.with_bias(name)) for name in ("query", "key"))
    query_gram = np.einsum("ahd,ab,bhe->hde", query, _second(layer, "query"), query, optimize=True)
    second = _second(layer, "key")
    within = np.zeros_like(second)  # as `second`, about the mean of each sequence
    within[:-1, :-1] = np.eye(len(second) - 1) if layer.moments is None else layer.moments.key_within
    costs = np.stack(_rotated(_waves(rotary, key.shape[-1]), query_gram))
    floor = 1e-9 * max(float(np.trace(costs[0], axis1=1, axis2=2).max()), TINY)
    costs += floor * np.eye(key.shape[-1])
    # root^T root is the inputs' second moment, root^T diag(share) root that within sequences.
    values, vectors = np.linalg.eigh(second)
    values = np.maximum(values, 0.0) + max(RIDGE * float(np.maximum(values, 0.0).mean()), TINY)
    inverse = vectors / np.sqrt(values)
    share, basis = np.linalg.eigh(inverse.T @ within @ inverse)
    root = basis.T @ (vectors * np.sqrt(values)).T
    return RotaryKeys(np.tensordot(root, key, 1), np.clip(share, LEAST_SEEN, 1.0), costs[0], costs[1], inverse @ basis)


def rotated_mean(rotary: Rotary, grams: np.ndarray) -> np.ndarray:
    """Return the means over distances of R G R^T for G `[heads, dim, dim]`, of which some dimensions may stay."""
    # A dimension that does not rotate counts as the first of a pair that does not; the second is zero.
    size, waves = grams.shape[-1], _waves(rotary, grams.shape[-1])
    rotating = 2 * waves.shape[1]
    first, second = (np.asarray(index) for index in rotary.split(jnp.arange(rotating)))
    still = size - rotating
    index = np.concatenate([first, np.arange(rotating, size), second])
    padded = np.zeros((len(grams), size + still, size + still))
    padded[:, :size, :size] = grams[:, index[:, None], index]
    mean = np.empty_like(grams)
    moved, _ = _rotated(np.pad(waves, ((0, 0), (0, still)), constant_values=1.0), padded)
    mean[:, index[:, None], index] = moved[:, :size, :size]
    return mean


def _waves(rotary: Rotary, size: int) -> np.ndarray:
    """Return e^(i angle) of every distance and pair, `[distances, pairs]`."""
    return np.exp(1j * np.asarray(rotary.angles(jnp.arange(DISTANCES)[None], size), np.float64)[0])


def _rotated(wave: np.ndarray, query_gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the means over distances of R E[q q^T] R^T, and those about the mean over a row, of every head."""
    count = wave.shape[1]
    blocks = query_gram.reshape(len(query_gram), 2, count, 2, count)
    outer = (blocks[:, 0, :, 0] + blocks[:, 1, :, 1]) + 1j * (blocks[:, 1, :, 0] - blocks[:, 0, :, 1])  # E[q conj(q)^T]
    inner = (blocks[:, 0, :, 0] - blocks[:, 1, :, 1]) + 1j * (blocks[:, 1, :, 0] + blocks[:, 0, :, 1])  # E[q q^T]
    mean = wave.mean(axis=0)
    difference, total = (wave.T @ other / len(wave) for other in (wave.conj(), wave))  # of two frequencies
    means = []
    for less in (0.0, 1.0):
        p = outer * (difference - less * np.outer(mean, mean.conj()))
        c = inner * (total - less * np.outer(mean, mean))
        rows = [[(p + c).real, (c - p).imag], [(c + p).imag, (p - c).real]]
        means.append(0.5 * np.concatenate([np.concatenate(row, axis=2) for row in rows], axis=1))
    return means[0], means[1]


def in_pairs(rotary: Rotary, array: jax.Array) -> np.ndarray:
    """Return the last dimension with the first ones of all rotary pairs before the second ones, in float64."""
    first, second = rotary.split(jnp.arange(array.shape[-1]))
    return np.asarray(array[..., jnp.concatenate([first, second])], np.float64)


def _second(layer: ConversionInput, name: str) -> np.ndarray:
    """Return the second moment of the inputs of queries or keys with a one appended, `[inputs + 1, inputs + 1]`."""
    if layer.moments is None:
        return np.eye(layer.params[name].shape[0] + 1)
    mean, covariance = layer.moments.of(name)
    extended = np.append(mean, 1.0)
    second = np.outer(extended, extended)
    second[:-1, :-1] += covariance
    return second


def fit_rotary(layer: ConversionInput, groups: Groups) -> Params:
    """Return queries of every head and one key per group that rotate alike, with the least error of logits."""
    rotary_keys, rotary = rotary_keys_of(layer), layer.attention.rotary
    query = as_complex(in_pairs(rotary, layer.with_bias("query")))
    queries, keys = [], []
    for group in groups:
        index = np.asarray(group)
        rows, factors = shared_key(rotary_keys.of(index))
        queries.append(query[:, index] * factors.conj())  # conj(q) c s = conj(conj(c) q) s
        keys.append(rows[:, None])
    params: Params = {}
    for name, parts in (("query", queries), ("key", keys)):
        joined = np.concatenate(parts, axis=1)
        real = rotary.join(jnp.asarray(joined.real, jnp.float32), jnp.asarray(joined.imag, jnp.float32))
        params |= {name: real[:-1], f"{name}_bias": real[-1]}
    return params


def shared_key(keys: RotaryKeys) -> tuple[np.ndarray, np.ndarray]:
    """Return one key s for several heads and factors c that rotate it into theirs, complex at each frequency."""
    # minimise  sum over rows i and heads h of e_ih^T Gamma_ih e_ih,  e_ih = k_ih - c_h s_i, Gamma as in `RotaryKeys`
    # Complex factors commute with rotations. From the leading eigenvectors c and s are solved in turns.
    if keys.rows.shape[1] == 1:
        return as_complex(keys.back @ keys.rows[:, 0]), np.ones((1, keys.frequencies), complex)
    target = keys.times_costs(keys.rows)
    factors = np.linalg.eigh(keys.by_frequency())[1][:, :, -1].T / np.sqrt(_sizes(keys.moving))
    shared = _best_key(keys, target, factors)
    for _ in range(SWEEPS):
        factors = _best_factors(keys, target, shared)
        shared = _best_key(keys, target, factors)
    size = np.maximum(np.linalg.norm(factors, axis=0), TINY)
    return as_complex(keys.back @ shared) * size, factors / size


def _best_key(keys: RotaryKeys, target: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return the s `[rows, head_dim]` with the least error for these c, row by row."""
    # A row of share w has the normal equations P - (1 - w) D; where P is the identity, D diagonal, all rows are solved.
    # k = (c' + i c'')(s' + i s''), real parts before imaginary ones.
    real, imaginary = (part[:, :, None] * np.eye(keys.frequencies) for part in (factors.real, factors.imag))
    spread = np.concatenate([np.concatenate([real, imaginary], 2), np.concatenate([-imaginary, real], 2)], 1)
    right = np.einsum("ngd,gad->na", target, spread)
    moving = np.einsum("gai,gij,gbj->ab", spread, keys.moving, spread, optimize=True)
    mean = np.einsum("gai,gij,gbj->ab", spread, keys.moving - keys.still, spread, optimize=True)
    moving.flat[:: len(moving) + 1] += DAMPING * max(float(np.trace(moving)) / len(moving), TINY)
    root = np.linalg.inv(np.linalg.cholesky(moving))
    share, vectors = np.linalg.eigh(root @ mean @ root.T)
    basis = root.T @ vectors
    kept = 1.0 - (1.0 - keys.within)[:, None] * np.clip(share, 0.0, 1.0)[None]
    return (right @ basis / np.maximum(kept, DAMPING)) @ basis.T


def _best_factors(keys: RotaryKeys, target: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """Return the c `[heads, frequencies]` with the least error for this s, head by head."""
    count = keys.frequencies
    grams = [shared.T @ shared, shared.T @ (keys.within[:, None] * shared)]
    grams = [gram.reshape(2, count, 2, count) for gram in grams]
    factors = np.empty((target.shape[1], count), complex)
    for head, of_head in enumerate(np.moveaxis(target, 1, 0)):
        costs = (keys.still[head], keys.moving[head] - keys.still[head])
        normal = _normal(grams[0], costs[0]) + _normal(grams[1], costs[1])
        inner = np.diagonal((shared.T @ of_head).reshape(2, count, 2, count), axis1=1, axis2=3)  # [2, 2, frequencies]
        right = np.concatenate([inner[0, 0] + inner[1, 1], inner[0, 1] - inner[1, 0]])
        normal.flat[:: len(normal) + 1] += DAMPING * max(float(np.trace(normal)) / len(normal), TINY)
        factors[head] = np.linalg.solve(normal, right).reshape(2, count).T @ (1.0, 1.0j)
    return factors


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


def keep_frequencies(layer: ConversionInput, count: int) -> tuple[tuple[tuple[int, ...], ...], Params]:
    """Return the `count` frequencies of every head that carry most of its squared logits, and the weights of those."""
    energy = np.diagonal(rotary_keys_of(layer).by_frequency(), axis1=1, axis2=2).real
    kept = np.sort(np.argsort(-energy, axis=0, kind="stable")[:count], axis=0).T
    rotary, size = layer.attention.rotary, layer.params["key"].shape[-1]
    dimensions = np.asarray(rotary.join(*(side[kept] for side in rotary.split(jnp.arange(size)))))
    chosen: Params = {}
    for name in ("query", "key", "query_bias", "key_bias"):
        if name in layer.params:
            array = layer.params[name]
            index = jnp.asarray(dimensions).reshape((1,) * (array.ndim - 2) + dimensions.shape)
            chosen[name] = jnp.take_along_axis(array, index, axis=-1)
    return tuple(tuple(int(number) for number in head) for head in kept), chosen


def rotary_losses(layer: ConversionInput) -> np.ndarray:
    """Return the cost of sharing one key for every pair of heads, `[heads, heads]`: the minima of `fit_rotary`."""
    # Phases are taken as equally likely, so that frequencies do not interact.
    weighted = rotary_keys_of(layer).by_frequency()
    squares = np.diagonal(weighted, axis1=1, axis2=2).real
    mean, half = squares[:, :, None] + squares[:, None, :], squares[:, :, None] - squares[:, None, :]
    lost = (mean - np.sqrt(np.square(half) + 4.0 * np.square(np.abs(weighted)))) / 2.0
    return np.maximum(lost, 0.0).sum(axis=0) / max(float(squares.sum(axis=0).mean()), TINY)
