"""Share keys that turn: per rotary frequency, the best few complex components of all key heads."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from headjax.attention import Attention, Grouped, MultiHead, SharedRotary
from headjax.attention.rotary import Rotary
from headjax.attention.shared_rotary import FOLDED
from headjax.conversion.latent import DISTANCES
from headjax.conversion.sharing import Groups
from headjax.conversion.target import Converted, Site, bias_or_zeros
from headjax.core.errors import require
from headjax.core.norms import RMSNorm
from headjax.core.tensors import Params

TINY = 1e-30


class Turning(NamedTuple):
    """One layer's keys as complex numbers, one per rotary pair, and the cost of their errors. NumPy.

    Attributes:
        rows: `[inputs + 1, kv_heads, frequencies]`, the keys' weights b_g,f times the learned scale of their
            normalisation; the last row is the bias.
        second: S_f `[frequencies, kv_heads, kv_heads]`, mean of k_g conj(k_g') as far as the softmax sees it.
        weights: `[frequencies, kv_heads]`, cost in squared logits of a unit error of each key.
    """

    rows: np.ndarray
    second: np.ndarray
    weights: np.ndarray

    def weighted(self) -> np.ndarray:
        """Return D S_f D with D = diag(sqrt(weights)), whose eigenvalues are squared logits."""
        root = np.sqrt(self.weights)
        return root[:, :, None] * self.second * root[:, None, :]


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


def turns(attention: Attention) -> TypeGuard[Grouped | MultiHead]:
    """Return whether a layer has keys of its own that turn with their positions."""
    return isinstance(attention, Grouped | MultiHead) and attention.rotary is not None


def turns_whole(attention: Grouped | MultiHead) -> bool:
    """Return whether all dimensions of the queries and keys turn."""
    return attention.rotary is not None and attention.rotary.dim in (None, attention.head_dim)


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


def share_keys(site: Site, size: int) -> Converted:
    """Return a layer whose keys turn as `SharedRotary` with `size` numbers of components a token."""
    source = grouped_of(site.attention)
    turning = turning_keys(site)
    shared = best_components(turning, allot(eigenvalues(turning), size // 2))
    dropped = FOLDED if source.key_norm is None else ("key_norm",)
    params: Params = {
        "inner": {name: array for name, array in site.params.items() if name not in dropped},
        "key": _real(shared.rows[:-1], axis=1),
        "mixing": _real(shared.mixing, axis=0),
    }
    if source.projection_bias:
        params["key_bias"] = _real(shared.rows[-1], axis=0)
    return Converted(SharedRotary(inner=source, components=shared.components), params)


def grouped_of(attention: Attention) -> Grouped:
    """Return a layer whose keys turn as grouped attention; multi-head attention has a key for every head."""
    if isinstance(attention, Grouped):
        return attention
    if not isinstance(attention, MultiHead):
        raise TypeError(f"expected keys that turn, got {attention}")
    shared = {field.name for field in dataclasses.fields(MultiHead)} & {
        field.name for field in dataclasses.fields(Grouped)
    }
    return Grouped(kv_heads=attention.num_heads, **{name: getattr(attention, name) for name in shared})


def turning_keys(site: Site) -> Turning:
    """Return the keys of a layer, one complex number per pair, with what their errors cost.

    An error e of key head g at frequency f changes the logit of a query at distance t by Re(conj(q) e e^(i t theta)).
    Its mean square over all phases is |q|^2 |e|^2 / 2, so a key counts by the mean |q|^2 of the heads that read it;
    normalised queries and keys count divided by their mean square. What all keys of a sequence have in common changes
    the logits of a row by a wave, and the softmax sees it without its mean over the distances: the share
    1 - |mean over t of e^(i t theta)|^2, near 1 at fast frequencies and near 0 at slow ones.
    """
    source = grouped_of(site.attention)
    rotary = _rotary(source)
    query, key = (_rows(site, name) for name in ("query", "key"))
    asked = np.einsum("ahd,ab,bhd->hd", query, _second(site, "query"), query, optimize=True)
    if source.query_norm is not None:
        gain = np.asarray(source.query_norm.gain(site.params["query_norm"]), np.float64)
        asked = asked * np.square(gain) / np.maximum(asked.mean(axis=-1, keepdims=True), TINY)
    weights = np.zeros((source.kv_heads, source.head_dim // 2))
    np.add.at(weights, np.asarray(source.groups), sum(rotary.split(asked)))
    second, within = _second(site, "key"), _within(site)
    if source.key_norm is not None:
        made = np.einsum("agd,ab,bgd->g", key, second, key, optimize=True) / source.head_dim
        weights = weights / np.maximum(made, TINY)[:, None]
        key = key * np.asarray(source.key_norm.gain(site.params["key_norm"]), np.float64)
    rows = _complex(rotary, key)
    wave = np.exp(1j * np.asarray(rotary.angles(jnp.arange(DISTANCES)[None], source.head_dim), np.float64)[0])
    seen = (1.0 - np.square(np.abs(wave.mean(axis=0))))[:, None, None]
    of_tokens, of_all = (
        np.einsum("agf,ab,bkf->fgk", rows, moment, rows.conj(), optimize=True) for moment in (within, second)
    )
    weights = np.maximum(weights, 1e-9 * max(float(weights.max()), TINY))
    return Turning(rows, of_tokens + seen * (of_all - of_tokens), weights.T)


def eigenvalues(turning: Turning) -> np.ndarray:
    """Return the squared logits that each further component saves, `[frequencies, kv_heads]`, largest first."""
    return np.maximum(np.linalg.eigvalsh(turning.weighted())[:, ::-1], 0.0)


def allot(saved: np.ndarray, total: int) -> tuple[int, ...]:
    """Divide `total` components among frequencies: one for each, then those that save the most.

    Args:
        saved: what each further component saves, `[frequencies, kv_heads]`, decreasing along the last axis.
        total: number of components.
    """
    order = np.argsort(-saved[:, 1:], axis=None, kind="stable")[: total - len(saved)]
    counts = 1 + np.bincount(order // max(saved.shape[1] - 1, 1), minlength=len(saved))
    return tuple(int(count) for count in counts)


def best_components(turning: Turning, components: tuple[int, ...]) -> Shared:
    """Return the components with the least error of logits, for a given number at each frequency.

        minimise  sum over g of w_g E|k_g - sum over r of c_g,r s_r|^2

    The minimum projects D k on the leading eigenvectors U of D S_f D, with D = diag(sqrt(w)): s = U^H D k and
    c = D^-1 U. With as many components as key heads the components are the keys themselves.
    """
    kv_heads = turning.rows.shape[1]
    vectors = np.linalg.eigh(turning.weighted())[1][:, :, ::-1]
    rows, mixing = [], []
    for frequency, count in enumerate(components):
        root = np.sqrt(turning.weights[frequency])[:, None]
        leading = vectors[frequency, :, :count]
        made, mixed = (leading.conj() * root, leading / root) if count < kv_heads else (np.eye(kv_heads),) * 2
        size = np.linalg.norm(mixed, axis=0)
        rows.append(turning.rows[:, :, frequency] @ (made * size))
        mixing.append(mixed / size)
    return Shared(components, np.concatenate(rows, axis=1), np.concatenate(mixing, axis=1))


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
    turning, rotary = turning_keys(site), _rotary(grouped_of(site.attention))
    queries, keys = [], []
    for group in groups:
        index = np.asarray(group)
        own = Turning(turning.rows[:, index], turning.second[:, index[:, None], index], turning.weights[:, index])
        shared = best_components(own, (1,) * len(own.second))
        queries.append(_complex(rotary, _rows(site, "query")[:, index]) * shared.mixing.conj())
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
    energy = np.diagonal(turning_keys(site).weighted(), axis1=1, axis2=2).real
    kept = np.sort(np.argsort(-energy, axis=0, kind="stable")[:count], axis=0).T
    rotary, size = _rotary(grouped_of(site.attention)), site.params["key"].shape[-1]
    dimensions = np.asarray(rotary.join(*(side[kept] for side in rotary.split(jnp.arange(size)))))
    chosen: Params = {}
    for name in ("query", "key", "query_bias", "key_bias"):
        if name in site.params:
            array = site.params[name]
            index = jnp.asarray(dimensions).reshape((1,) * (array.ndim - 2) + dimensions.shape)
            chosen[name] = jnp.take_along_axis(array, index, axis=-1)
    return tuple(tuple(int(number) for number in head) for head in kept), chosen


def turning_losses(site: Site) -> np.ndarray:
    """Return the minima of `fit_turning` for every pair of heads, `[heads, heads]`, relative to a head's own logits."""
    weighted = turning_keys(site).weighted()
    own = np.diagonal(weighted, axis1=1, axis2=2).real
    mean, half = own[:, :, None] + own[:, None, :], own[:, :, None] - own[:, None, :]
    lost = (mean - np.sqrt(np.square(half) + 4.0 * np.square(np.abs(weighted)))) / 2.0
    return np.maximum(lost, 0.0).sum(axis=0) / max(float(own.sum(axis=0).mean()), TINY)


def _complex(rotary: Rotary, rows: np.ndarray) -> np.ndarray:
    """Return the pairs of the last dimension as complex numbers."""
    first, second = (np.asarray(index) for index in rotary.split(jnp.arange(rows.shape[-1])))
    return rows[..., first] + 1j * rows[..., second]


def _rotary(source: Grouped) -> Rotary:
    if source.rotary is None:
        raise TypeError(f"expected keys that turn, got {source}")
    return source.rotary


def _rows(site: Site, name: str) -> np.ndarray:
    """Return W_Q or W_K with its bias as one more row, `[inputs + 1, heads, head_dim]`."""
    rows = jnp.concatenate([site.params[name], bias_or_zeros(site, name)[None]])
    return np.asarray(rows, np.float64)


def _second(site: Site, name: str) -> np.ndarray:
    """Return the second moment of the inputs of queries or keys with a one appended, `[inputs + 1, inputs + 1]`."""
    if site.moments is None:
        return np.eye(site.params[name].shape[0] + 1)
    of_query = name == "query"
    mean = site.moments.query_mean if of_query else site.moments.key_mean
    covariance = site.moments.query_covariance if of_query else site.moments.key_covariance
    extended = np.append(mean, 1.0)
    second = np.outer(extended, extended)
    second[:-1, :-1] += covariance
    return second


def _within(site: Site) -> np.ndarray:
    """Return the second moment of the keys' inputs about the mean of their sequence, a zero appended."""
    size = site.params["key"].shape[0]
    within = np.zeros((size + 1, size + 1))
    within[:-1, :-1] = np.eye(size) if site.moments is None else site.moments.key_within
    return within


def _real(array: np.ndarray, axis: int) -> jax.Array:
    """Return the real and the imaginary part along a new axis, in float32."""
    return jnp.asarray(np.stack([array.real, array.imag], axis=axis), jnp.float32)
