"""Share keys that turn: per rotary frequency, a few complex components of all KV heads."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.attention import Grouped, MultiHead, SharedRotary
from headjax.attention.module import AttentionModule
from headjax.attention.shared_rotary import FOLDED
from headjax.conversion.sharing import Groups
from headjax.conversion.target import Site
from headjax.conversion.turning import (
    TINY,
    Turning,
    as_complex,
    grouped_of,
    in_pairs,
    rotary_of,
    turning_keys,
    turns_whole,
    weights_and_bias,
)
from headjax.core.errors import require
from headjax.core.norms import RMSNorm
from headjax.core.tensors import Params

SWEEPS = 4
"""Rounds of alternating least squares after every step of the search."""

STEPS = 8
"""Steps in which as many components are added as there are frequencies."""

RIDGE = 1e-9
"""Share of the mean of a diagonal that is added to it, so that equations have one solution."""


class Shared(NamedTuple):
    """Components of the keys of one layer, frequency after frequency. NumPy, complex.

    Attributes:
        components: number R_f of components of each frequency.
        rows: `[inputs + 1, total]`, weights of the components; the last row is the bias.
        mixing: c `[kv_heads, total]`.
    """

    components: tuple[int, ...]
    rows: np.ndarray
    mixing: np.ndarray


def check_shared(attention: Grouped | MultiHead, field: str, size: int) -> None:
    """Raise a `ConfigError` unless the keys can share `size` numbers a token."""
    least, kv_heads = attention.head_dim, getattr(attention, "kv_heads", attention.num_heads)
    require(turns_whole(attention), "rotary", "turns some dimensions of the heads alone, which cannot be shared")
    norm = getattr(attention, "key_norm", None)
    require(norm is None or isinstance(norm, RMSNorm), "key_norm", "is no RMSNorm, so keys cannot be shared")
    require(size % 2 == 0, field, f"keys that turn share pairs of dimensions, so it must be even, got {size}")
    most = kv_heads * least
    which = "kv_heads" if isinstance(attention, Grouped) else "num_heads"
    fits = least <= size <= most
    require(fits, field, f"must be from head_dim = {least} to {which} * head_dim = {most} where keys turn, got {size}")


def share_keys(site: Site, size: int) -> AttentionModule:
    """Return a layer whose keys turn as `SharedRotary` with `size` numbers of components a token."""
    source = grouped_of(site.attention)
    shared = best_components(turning_keys(site), size // 2)
    dropped = FOLDED if source.key_norm is None else ("key_norm",)
    params: Params = {
        "inner": {name: array for name, array in site.params.items() if name not in dropped},
        "key": _real(shared.rows[:-1], axis=1),
        "mixing": _real(shared.mixing, axis=0),
    }
    if source.projection_bias:
        params["key_bias"] = _real(shared.rows[-1], axis=0)
    return site.becoming(SharedRotary(inner=source, components=shared.components), params)


def best_components(turning: Turning, total: int) -> Shared:
    """Return `total` components that cost little, see `Turning`: one for every frequency, then the best further ones.

        minimise  sum over rows i and KV heads g of e_ig^T Gamma_ig e_ig,    e_ig = k_ig - sum over r of c_g,r s_i,r

    Further components go where the error falls most. After every few, all s and all c are solved again in turns by
    least squares. A larger total passes through the components of a smaller one, and the error only falls from there.
    With as many components as KV heads at every frequency they are the keys themselves.
    """
    kv_heads, frequencies = turning.rows.shape[1], turning.frequencies
    if total == kv_heads * frequencies:
        rows = as_complex(np.einsum("an,ngd->agd", turning.back, turning.rows)).swapaxes(1, 2)
        mixing = np.tile(np.eye(kv_heads, dtype=complex), frequencies)
        return Shared((kv_heads,) * frequencies, rows.reshape(len(rows), -1), mixing)
    fit = _Fit(turning)
    step = -(-frequencies // STEPS)
    while missing := total - len(fit.owners):
        count = min(step, fit.open)
        fit.grow(min(missing, count))
        if missing >= count:
            fit.alternate(SWEEPS)
    return fit.shared()


class _Fit:
    """Components under construction.

    Attributes:
        owners: `[total]`, frequency of each component.
        mixing: c `[kv_heads, total]`, complex.
        made: s `[rows, 2 total]`, real parts before imaginary ones: the best for these c.
    """

    def __init__(self, turning: Turning) -> None:
        self._turning, self._size = turning, np.sqrt(turning.sizes)
        self._target = turning.counted(turning.rows)
        vectors = np.linalg.eigh(turning.by_frequency())[1]
        self.owners = np.arange(turning.frequencies)
        self.mixing = vectors[:, :, -1].T / self._size
        self.made = self._best_made()
        self.alternate(SWEEPS)

    @property
    def open(self) -> int:
        """Number of frequencies that have fewer components than there are KV heads."""
        return int((self._counts() < self._turning.rows.shape[1]).sum())

    def lost(self) -> np.ndarray:
        """Return the errors of the keys, `[rows, kv_heads, head_dim]`."""
        return self._turning.rows - np.einsum("na,gad->ngd", self.made, self._spread())

    def grow(self, count: int) -> None:
        """Add the components along which the error is steepest, no two of one frequency."""
        steepest = as_complex(self._turning.counted(self.lost())) / self._size
        values, vectors = np.linalg.eigh(np.einsum("ngf,nkf->fgk", steepest, steepest.conj()))
        full = self._counts() == self._turning.rows.shape[1]
        chosen = np.argsort(np.where(full, np.inf, -values[:, -1]), kind="stable")[:count]
        self.owners = np.append(self.owners, chosen)
        self.mixing = np.concatenate([self.mixing, vectors[chosen, :, -1].T / self._size[:, chosen]], axis=1)
        self.made = self._best_made()

    def alternate(self, sweeps: int) -> None:
        """Solve all c and all s again in turns; no turn raises the error."""
        for _ in range(sweeps):
            self.mixing = self._best_mixing()
            self.made = self._best_made()

    def shared(self) -> Shared:
        """Return the components, frequency after frequency, each as large as the keys that it makes."""
        order = np.argsort(self.owners, kind="stable")
        rows = as_complex(self._turning.back @ self.made)[:, order]
        size = np.maximum(np.linalg.norm(self.mixing[:, order], axis=0), TINY)
        return Shared(tuple(self._counts().tolist()), rows * size, self.mixing[:, order] / size)

    def _counts(self) -> np.ndarray:
        return np.bincount(self.owners, minlength=self._turning.frequencies)

    def _spread(self) -> np.ndarray:
        """Return the map from components to keys, `[kv_heads, 2 total, head_dim]`: k = (c' + i c'')(s' + i s'')."""
        (kv_heads, total), frequencies = self.mixing.shape, self._turning.frequencies
        spread = np.zeros((kv_heads, 2, total, 2, frequencies))
        number = np.arange(total)
        for (part, of), entry in (
            ((0, 0), self.mixing.real),
            ((0, 1), self.mixing.imag),
            ((1, 0), -self.mixing.imag),
            ((1, 1), self.mixing.real),
        ):
            spread[:, part, number, of, self.owners] = entry
        return spread.reshape(kv_heads, 2 * total, 2 * frequencies)

    def _best_made(self) -> np.ndarray:
        """Return the s with the least error for these c, row by row.

        A row of share w has the normal equations P - (1 - w) D, with P and P - D those of w = 1 and w = 0. In a basis
        in which P is the identity and D diagonal, they are solved for all rows at once.
        """
        turning, spread = self._turning, self._spread()
        right = np.einsum("ngd,gad->na", self._target, spread)
        whole = np.einsum("gai,gij,gbj->ab", spread, turning.moving, spread, optimize=True)
        less = np.einsum("gai,gij,gbj->ab", spread, turning.moving - turning.still, spread, optimize=True)
        whole.flat[:: len(whole) + 1] += RIDGE * max(float(np.trace(whole)) / len(whole), TINY)
        root = np.linalg.inv(np.linalg.cholesky(whole))
        share, turn = np.linalg.eigh(root @ less @ root.T)
        basis = root.T @ turn
        kept = 1.0 - (1.0 - turning.within)[:, None] * np.clip(share, 0.0, 1.0)[None]
        return (right @ basis / np.maximum(kept, RIDGE)) @ basis.T

    def _best_mixing(self) -> np.ndarray:
        """Return the c with the least error for these s, KV head by KV head."""
        turning, total = self._turning, len(self.owners)
        grams = [self.made.T @ self.made, self.made.T @ (turning.within[:, None] * self.made)]
        grams = [gram.reshape(2, total, 2, total) for gram in grams]
        found = np.empty_like(self.mixing)
        for head, target in enumerate(np.moveaxis(self._target, 1, 0)):
            costs = (turning.still[head], turning.moving[head] - turning.still[head])
            normal = self._products(grams[0], costs[0]) + self._products(grams[1], costs[1])
            met = (self.made.T @ target).reshape(2, total, 2, -1)[:, np.arange(total), :, self.owners]  # [total, 2, 2]
            right = np.concatenate([met[:, 0, 0] + met[:, 1, 1], met[:, 0, 1] - met[:, 1, 0]])
            normal.flat[:: len(normal) + 1] += RIDGE * max(float(np.trace(normal)) / len(normal), TINY)
            found[head] = np.linalg.solve(normal, right).reshape(2, total).T @ (1.0, 1.0j)
        return found

    def _products(self, gram: np.ndarray, cost: np.ndarray) -> np.ndarray:
        """Return the normal equations `[2 total, 2 total]` of the real and imaginary parts of one head's c.

        Args:
            gram: `[2, total, 2, total]`, products of the parts of s.
            cost: `[head_dim, head_dim]`.
        """
        total, frequencies = len(self.owners), self._turning.frequencies
        blocks = cost.reshape(2, frequencies, 2, frequencies)[:, self.owners][..., self.owners]
        # Part a of c and part p of s give part o of the key with this sign: (c' + i c'')(s' + i s'').
        signs = ((0, 0, 0, 1.0), (0, 1, 1, 1.0), (1, 1, 0, -1.0), (1, 0, 1, 1.0))
        normal = np.zeros((2, total, 2, total))
        for a, p, o, sign in signs:
            for b, q, r, other in signs:
                normal[a, :, b] += sign * other * gram[p, :, q] * blocks[o, :, r]
        return normal.reshape(2 * total, 2 * total)


def fit_turning(site: Site, groups: Groups) -> Params:
    """Return queries of every head and one key per group that turn alike, with the least error of logits.

    The key is the best single component of the group's keys at each frequency. A head's c goes into its query, because
    conj(q) c s = conj(conj(c) q) s.

    Args:
        site: Multi-head layer, all of whose dimensions turn.
        groups: Groups of heads that share a key.

    Returns:
        `query`, `query_bias` with heads in the order of the groups, `key`, `key_bias`.
    """
    turning, rotary = turning_keys(site), rotary_of(grouped_of(site.attention))
    asked = as_complex(in_pairs(rotary, weights_and_bias(site, "query")))
    queries, keys = [], []
    for group in groups:
        index = np.asarray(group)
        shared = best_components(turning.of(index), turning.frequencies)
        queries.append(asked[:, index] * shared.mixing.conj())
        keys.append(shared.rows[:, None])
    params: Params = {}
    for name, parts in (("query", queries), ("key", keys)):
        found = np.concatenate(parts, axis=1)
        real = rotary.join(jnp.asarray(found.real, jnp.float32), jnp.asarray(found.imag, jnp.float32))
        params |= {name: real[:-1], f"{name}_bias": real[-1]}
    return params


def keep_frequencies(site: Site, count: int) -> tuple[tuple[tuple[int, ...], ...], Params]:
    """Return the `count` frequencies of every head that carry most of its squared logits, and the weights of those.

    Args:
        site: Multi-head layer, all of whose dimensions turn.
        count: Number of frequencies to keep of each head.

    Returns:
        Frequencies of each head, from the fastest on, and `query`, `key` and their biases, where the layer has them.
    """
    energy = np.diagonal(turning_keys(site).by_frequency(), axis1=1, axis2=2).real
    kept = np.sort(np.argsort(-energy, axis=0, kind="stable")[:count], axis=0).T
    rotary, size = rotary_of(grouped_of(site.attention)), site.params["key"].shape[-1]
    dimensions = np.asarray(rotary.join(*(side[kept] for side in rotary.split(jnp.arange(size)))))
    chosen: Params = {}
    for name in ("query", "key", "query_bias", "key_bias"):
        if name in site.params:
            array = site.params[name]
            index = jnp.asarray(dimensions).reshape((1,) * (array.ndim - 2) + dimensions.shape)
            chosen[name] = jnp.take_along_axis(array, index, axis=-1)
    return tuple(tuple(int(number) for number in head) for head in kept), chosen


def turning_losses(site: Site) -> np.ndarray:
    """Return the cost of sharing one key for every pair of heads, `[heads, heads]`, relative to a head's own logits.

    The results are the minima of `fit_turning` where phases are equally likely, so that frequencies do not interact.
    """
    weighted = turning_keys(site).by_frequency()
    own = np.diagonal(weighted, axis1=1, axis2=2).real
    mean, half = own[:, :, None] + own[:, None, :], own[:, :, None] - own[:, None, :]
    lost = (mean - np.sqrt(np.square(half) + 4.0 * np.square(np.abs(weighted)))) / 2.0
    return np.maximum(lost, 0.0).sum(axis=0) / max(float(own.sum(axis=0).mean()), TINY)


def _real(array: np.ndarray, axis: int) -> jax.Array:
    """Return the real and the imaginary part along a new axis, in float32."""
    return jnp.asarray(np.stack([array.real, array.imag], axis=axis), jnp.float32)
