"""Multi-head to grouped-query attention: several heads share one key and one value."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from headjax.conversion.per_head import extended, fit_query_key, fit_value_output, seen_keys, sharing_losses
from headjax.conversion.rope import fit_rotary, is_fully_rotary, rotary_losses
from headjax.conversion.target import (
    ConversionInput,
    Groups,
    Target,
    copied_keys,
    is_normalised,
    is_rotary,
    multi_head_of,
)
from headjax.core.errors import require
from headjax.core.fields import Size
from headjax.core.modules import declared
from headjax.core.tensors import Params
from headjax.nn import GroupedAttention, Kind
from headjax.nn.module import AttentionModule
from headjax.nn.rotary import Rotary

Pooling = Literal["fitted", "aligned", "mean"]
"""Methods that make one key and value of a group's."""

RESTARTS = 8
"""Number of random partitions that exchanges of heads start from."""

SWEEPS = 30
"""Largest number of rounds in which heads are aligned, which end once no entry of a rotation changes by `SETTLED`."""

SETTLED = 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToGrouped(Target):
    """Groups of heads read one KV head each; kv_heads = 1 is multi-query attention.

    Pooling methods:

    * `fitted`: the shared key and value, and every head's query and output, that are best for the products W_Q^h W_K^hT
      and W_V^h W_O^h, in closed form. With rotary embeddings the best shared pair of each frequency; keys of which some
      dimensions do not rotate are `aligned`.
    * `aligned`: rotations that change no logit (W_Q^h R_h, W_K^h R_h) rotate the keys of a group onto each other by
      generalised Procrustes (Gower 1975); with rotary embeddings they rotate pair by pair. The mean key has the heads'
      mean norm, so that attention stays as sharp as it was. Values are fitted.
    * `mean`: the mean of the heads' keys and values (Ainslie et al. 2023).

    Where queries or keys are normalised (Qwen3), the norm stays and follows the shared key. A head's own factor would
    be lost in it, and a rotation does not commute with the norm's scale: `fitted` and `aligned` take the mean of the
    heads' keys, each divided by its root mean square, and fit values alone.

    Attributes:
        kv_heads: Number of KV heads, a divisor of num_heads.
        pooling: Method that makes one key and value of a group's. None tries `fitted` and `aligned` and takes the one
            whose model agrees better with the original on batches held out; without such `fitted`.
        grouping: `best` exchanges heads between groups while that brings their keys and values nearer; `consecutive`
            takes neighbours. Heads keep their numbers when they move.
    """

    name: ClassVar[str] = "grouped"

    kv_heads: Size
    pooling: Pooling | None = None
    grouping: Literal["best", "consecutive"] = "best"

    def check(self, attention: Kind, width: int, memory_width: int) -> None:
        heads = (attention if is_normalised(attention) else multi_head_of(attention)).num_heads
        divides = 1 <= self.kv_heads <= heads and heads % self.kv_heads == 0
        require(divides, "kv_heads", f"{self.kv_heads} does not divide the num_heads of {heads}")

    def criteria(self) -> tuple[ToGrouped, ...]:
        if self.pooling is not None:
            return (self,)
        return dataclasses.replace(self, pooling="fitted"), dataclasses.replace(self, pooling="aligned")

    def planned(self) -> ToGrouped:
        return dataclasses.replace(self, grouping="consecutive", pooling="mean")

    def prepare(self, module: AttentionModule) -> AttentionModule:
        if not is_normalised(module.kind):
            return super().prepare(module)
        alone = module.kind.replace(kv_heads=module.num_heads, kv_index=None)
        return module.like(alone, copied_keys(module))

    def convert_layer(self, layer: ConversionInput, seed: int) -> AttentionModule:
        source = layer.attention
        if self.grouping == "consecutive" or self.kv_heads in (1, source.num_heads):
            groups = np.arange(source.num_heads).reshape(self.kv_heads, -1).tolist()
        else:
            groups = best_partition(head_distances(layer, self.pooling or "fitted"), self.kv_heads, seed)
        ids = tuple(source.ids[head] for group in groups for head in group)
        # With a key and a value for every head there is nothing to pool.
        pooling = "mean" if self.kv_heads == source.num_heads else self.pooling or "fitted"
        config = source.become(
            GroupedAttention,
            kv_heads=self.kv_heads,
            kv_index=None,
            projection_bias=source.projection_bias or (pooling != "mean" and layer.moments is not None),
            head_ids=None if ids == tuple(range(len(ids))) else ids,
        )
        params = layer.params | _pooled(layer, groups, pooling)
        weights = declared(config.module(layer.module.width, layer.module.memory_width))
        return layer.module.like(config, {name: params[name] for name in weights})


def head_distances(layer: ConversionInput, pooling: Pooling) -> np.ndarray:
    """Return the cost `[heads, heads]` of sharing a key and a value: the error of the best, or the distance of both."""
    source = layer.attention
    keys, values = (np.asarray(losses, np.float64) for losses in sharing_losses(layer))
    if is_normalised(source):
        keys = distances(_seen(layer, "key") / np.asarray(_sizes(layer))[:, None])
    elif pooling == "mean":
        keys = distances(_seen(layer, "key"))
    elif pooling == "fitted" and is_fully_rotary(source):
        keys = rotary_losses(layer)
    elif pooling == "aligned" or is_rotary(source):
        keys = distances(_seen(layer, "key"), source.rotary, aligned=True)
    if pooling == "mean":
        values = distances(_seen(layer, "value"))
    costs = keys + values
    return (costs + costs.T) / 2.0


def _pooled(layer: ConversionInput, groups: Groups, pooling: Pooling) -> Params:
    """Return queries and outputs in the order of the groups, and the key and value that each group shares."""
    source, index = layer.attention, np.asarray(groups)
    biases = {f"{name}_bias": layer.bias(name) for name in ("query", "key", "value")}
    weights = layer.params | biases
    if pooling == "mean":
        return _averaged(weights, index)
    values = fit_value_output(layer, groups, source.values)
    if is_normalised(source):
        sizes = _sizes(layer)[:, None]
        sizes /= sizes.mean()  # beside the norm's epsilon keys stay as large as they were
        normalised = {"key": weights["key"] / sizes[None], "key_bias": weights["key_bias"] / sizes}
        return _averaged(weights | normalised, index) | values
    if pooling == "fitted" and is_fully_rotary(source):
        return fit_rotary(layer, groups) | values
    if pooling == "fitted" and not is_rotary(source):
        return fit_query_key(layer, groups, source.head_dim) | values
    return _averaged(weights | _aligned(layer, weights, groups), index) | values


def _aligned(layer: ConversionInput, weights: Params, groups: Groups) -> Params:
    """Return rotated queries and keys; the keys of a group are scaled so that their mean has the heads' mean norm."""
    keys, rotary = _seen(layer, "key"), layer.attention.rotary
    _, heads, dim = keys.shape
    rotations, factor = np.empty((heads, dim, dim)), np.empty((heads, 1, 1))
    for group in map(list, groups):
        rotations[group] = align(keys[:, group], rotary)
        mean = np.einsum("rhi,hij->rj", keys[:, group], rotations[group]) / len(group)
        factor[group] = np.linalg.norm(keys[:, group], axis=(0, 2)).mean() / max(np.linalg.norm(mean), 1e-30)
    maps = {"query": jnp.asarray(rotations, jnp.float32), "key": jnp.asarray(factor * rotations, jnp.float32)}
    return {
        name: jnp.einsum("...hi,hij->...hj", weights[name], maps[name.removesuffix("_bias")])
        for name in ("query", "query_bias", "key", "key_bias")
    }


@jax.jit
def _averaged(weights: Params, groups: np.ndarray) -> Params:
    """Return queries and outputs in the order of the groups, and the means of each group's keys and values."""
    order = groups.reshape(-1)
    params = {name: jnp.take(weights[name], order, axis=weights[name].ndim - 2) for name in ("query", "query_bias")}
    params["output"] = weights["output"] | {"kernel": jnp.take(weights["output"]["kernel"], order, axis=0)}
    for name in ("key", "key_bias", "value", "value_bias"):
        axis = weights[name].ndim - 2
        params[name] = jnp.take(weights[name], groups, axis=axis).mean(axis=axis + 1)
    return params


def _seen(layer: ConversionInput, name: str) -> np.ndarray:
    """Return W_K or W_V `[rows, heads, dim]` in coordinates of independent inputs, to compare heads by."""
    # A bias of keys counts where they rotate or are normalised; else it adds the same to all logits of a row.
    counts = name == "value" or is_rotary(layer.attention) or is_normalised(layer.attention)
    return np.asarray(extended(layer, name).rows if counts else seen_keys(layer)[0], np.float64)


def _sizes(layer: ConversionInput) -> jax.Array:
    """Return the root mean square of every head's key, `[heads]`, times a number that all heads share."""
    return jnp.maximum(jnp.sqrt(jnp.square(extended(layer, "key").rows).sum(axis=(0, 2))), 1e-30)


def best_partition(distances: np.ndarray, groups: int, seed: int) -> list[list[int]]:
    """Return groups of equal size with a low sum of distances, by the best exchanges from several partitions."""
    heads = distances.shape[0]
    generator = np.random.default_rng(seed)
    starts = [np.arange(heads)] + [generator.permutation(heads) for _ in range(RESTARTS)]
    labels = np.arange(heads) * groups // heads
    improved = [_exchange(distances, labels[np.argsort(order)]) for order in starts]
    best = min(improved, key=lambda groups: distances[groups[:, None] == groups[None, :]].sum())
    return sorted(np.flatnonzero(best == group).tolist() for group in range(groups))


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


def nearest_rotation(inner: np.ndarray, rotary: Rotary | None) -> np.ndarray:
    """Return the R that minimise ||X R - Y||, of products X^T Y `[..., dim, dim]` (Schoenemann 1966).

    Without rotary embeddings that is U V^T of X^T Y = U diag(s) V^T. With them, each pair
    of dimensions rotates by one angle, and the dimensions without position freely among themselves.
    """
    if rotary is None:
        u, _, vt = np.linalg.svd(inner)
        return u @ vt
    rotating = inner.shape[-1] if rotary.dim is None else rotary.dim
    first, second = (np.asarray(index) for index in rotary.split(jnp.arange(rotating)))
    sin = inner[..., first, second] - inner[..., second, first]
    angle = np.arctan2(sin, inner[..., first, first] + inner[..., second, second])
    rotation = np.zeros_like(inner)
    rotation[..., first, first] = rotation[..., second, second] = np.cos(angle)
    rotation[..., first, second], rotation[..., second, first] = np.sin(angle), -np.sin(angle)
    rotation[..., rotating:, rotating:] = nearest_rotation(inner[..., rotating:, rotating:], None)
    return rotation


def align(heads: np.ndarray, rotary: Rotary | None) -> np.ndarray:
    """Return the rotations `[heads, dim, dim]` of X `[rows, heads, dim]` that bring all nearest to their mean."""
    # minimise  sum_h ||X_h R_h - mean_k X_k R_k||^2: each in turn is aligned to the sum of the others (ten Berge 1977),
    # which never raises the sum; at first all are aligned to the first one.
    inner = products(heads)
    rotations = nearest_rotation(inner[:, 0], rotary)
    for _ in range(SWEEPS):
        before = rotations.copy()
        for head in range(len(inner)):
            onto = np.einsum("kij,kjl->il", inner[head], rotations) - inner[head, head] @ rotations[head]
            rotations[head] = nearest_rotation(onto, rotary)
        if np.abs(rotations - before).max() < SETTLED:
            break
    return rotations


def distances(heads: np.ndarray, rotary: Rotary | None = None, *, aligned: bool = False) -> np.ndarray:
    """Return ||X_i - X_j||^2 for X `[rows, heads, dim]`, or its minimum over rotations, over the mean ||X||^2."""
    if aligned:
        inner = products(heads)
        inner = (nearest_rotation(inner, rotary) * inner).sum(axis=(2, 3))
    else:
        inner = np.tensordot(heads, heads, ((0, 2), (0, 2)))
    size = np.diagonal(inner)
    return (size[:, None] + size - 2.0 * inner) / max(float(size.mean()), 1e-30)


def products(heads: np.ndarray) -> np.ndarray:
    """Return X_i^T X_j `[heads, heads, dim, dim]`."""
    return np.einsum("rhi,rkj->hkij", heads, heads, optimize=True)
