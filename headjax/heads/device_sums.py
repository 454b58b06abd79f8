"""Sums of products over the tokens of two halves of the examples, collected on the device and added up on the host."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from headjax.heads.refit import RefitSums
from headjax.heads.statistics import sum_over
from headjax.mesh.mesh import SPREADING, by_example, current_mesh
from headjax.models.inputs import counted_at
from headjax.models.walk import SubLayerSeen

Tree = TypeVar("Tree")

FLOAT32_TOKENS = 16384
"""Tokens whose products are added in float32 before they go to the host."""

ROWS, BLOCKS = 384, 8
"""Fewest rows of a block of x x^T, and the most blocks."""


class DeviceSums(NamedTuple):
    """Sums as those of `RefitSums`; x x^T is symmetric, so each block of its rows begins at the diagonal."""

    gram: tuple[Any, ...]
    cross: Any
    square: Any

    def whole(self) -> RefitSums:
        """Return fetched sums as `RefitSums`."""
        halves, _, size = self.gram[0].shape
        gram, start = np.empty((halves, size, size)), 0
        for rows in self.gram:
            stop = start + rows.shape[1]
            gram[:, start:stop, start:] = rows
            gram[:, stop:, start:stop] = rows[:, :, stop - start :].swapaxes(1, 2)
            start = stop
        return RefitSums(gram, self.cross, self.square)


def feature_sums(layer: SubLayerSeen, target_residual: jax.Array, shift: Any) -> DeviceSums:
    """Return the sums of products of a sub-layer's features with themselves and with the target residual."""
    counted = counted_at(layer.mask, layer.output.shape[:2])[:, :, None]
    ones = jnp.ones((*layer.output.shape[:2], 1), jnp.float32)
    features = jnp.where(counted > 0, jnp.concatenate([layer.features.astype(jnp.float32), ones], axis=2), 0.0)
    residual = jnp.where(counted > 0, target_residual, 0.0)
    return replicated_sums(sums_by_half(by_example(features), by_example(residual), shift))


def sums_by_half(features: jax.Array, target_residual: jax.Array, shift: Any) -> DeviceSums:
    """Return the sums of products of one batch, `[batch, length, n]`."""
    x, r = _in_pairs(features, shift), _in_pairs(target_residual, shift)
    product = functools.partial(jnp.einsum, "phtn,phtm->hnm", precision="highest")
    size = x.shape[-1]
    starts = np.linspace(0, size, min(max(size // ROWS, 1), BLOCKS) + 1).astype(int)
    gram = tuple(product(x[..., start:stop], x[..., start:]) for start, stop in itertools.pairwise(starts))
    return DeviceSums(gram, product(x, r), jnp.square(r).sum(axis=(0, 2)))


def _in_pairs(array: jax.Array, shift: Any) -> jax.Array:
    """Return `[batch, length, n]` as `[pairs, 2, length, n]`, zeros beside a last example that has no other.

    Where `shift` is 1, the second of a pair comes first. Halves are exchanged here, since their products are larger;
    `jnp.roll` by a traced number would take six times as long to compile.
    """
    even = jnp.pad(array, ((0, array.shape[0] % 2), (0, 0), (0, 0)))
    pairs = even.reshape(-1, 2, *array.shape[1:])
    return jnp.stack([jax.lax.dynamic_index_in_dim(pairs, at, 1, keepdims=False) for at in (shift, 1 - shift)], axis=1)


def replicated_sums(sums: Tree) -> Tree:
    """Return traced sums whole on every device of the current mesh; as they are without one."""
    return sums if current_mesh(*SPREADING) is None else jax.lax.with_sharding_constraint(sums, PartitionSpec())


def sum_over_batches(parts: Iterable[tuple[Any, int]]) -> Any:
    """Return the sums over all batches, in float64 on the host, of each batch's sums and its number of tokens."""
    return sum_over(_sums_of_several(parts))


def _sums_of_several(parts: Iterable[tuple[Tree, int]]) -> Iterator[Tree]:
    """Yield sums over `FLOAT32_TOKENS` tokens at a time, added on the device."""
    total: Tree | None = None
    tokens = 0
    for sums, count in parts:
        total = sums if total is None else _added(total, sums)
        tokens += count
        if tokens >= FLOAT32_TOKENS:
            yield total
            total, tokens = None, 0
    if total is not None:
        yield total


@functools.partial(jax.jit, donate_argnums=0)
def _added(total: Tree, sums: Tree) -> Tree:
    added: Tree = jax.tree.map(jnp.add, total, sums)
    return added
