"""Choose heads by Fisher information with the interactions inside a layer (Kwon et al. 2022)."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.core.progress import Update
from headjax.core.tensors import Params
from headjax.heads import gates as head_gates
from headjax.heads.groups import removals
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.ordering import Order, ends, flat, most_of, steps_within_minimum
from headjax.heads.scores import gate_gradient, own_arrays
from headjax.heads.statistics import sum_over
from headjax.models.compute import Compute
from headjax.models.config import Batch, Gates, ModelConfig
from headjax.models.inputs import device_batch
from headjax.models.model import Model

Blocks = Mapping[str, np.ndarray]
"""Fisher information `[layers, max_heads, max_heads]` by head stack."""


def fisher_blocks(
    model: Model,
    batches: Iterable[Batch],
    *,
    gates: Gates | None = None,
    compute: Compute = Compute(),
    progress: Update | None = None,
) -> dict[str, np.ndarray]:
    """Return the empirical Fisher information of each layer's gates: sum over examples of g g^T, g_h = dL(x) / dxi_h.

    Its diagonal is the score `fisher`. With s_h = 1 for removed heads, s^T F s estimates (up to a factor) the loss that
    removing them together costs.

    Args:
        model: Model to examine.
        batches: Examples with labels.
        gates: `[layers, max_heads]` by head stack, gates at which to differentiate; None is all ones.
        compute: Precision and kernels of the forward pass.
        progress: Called after every batch with the number of batches done.

    Raises:
        DataError: There are no batches.
    """
    config = model.config.for_evaluation()
    at = head_gates.filled(config, gates)
    params = own_arrays(config, model.params, compute)
    arrays = (device_batch(config, batch) for batch in batches)
    blocks = (_blocks(config, params, batch, at, compute) for batch in arrays)
    count = None if progress is None else lambda number, _: progress(number + 1, {})
    total: dict[str, np.ndarray] = sum_over(blocks, count)
    return total


def fisher_selection(
    config: ModelConfig,
    blocks: Blocks,
    count: int,
    minimum: int = 0,
    stacks: Collection[str] | None = None,
    *,
    whole_groups: bool = False,
) -> Order:
    """Return the heads to remove: their number per layer by the diagonal, then by the whole block (sections 4.1, 4.2).

    A layer loses as many heads as it has among the `count` heads of least diagonal Fisher information. Removed
    heads of a layer are then exchanged for kept ones, the best exchange first, while that lowers s^T F s. Whole groups
    have one gate each: their F sums over the heads of both groups. Layers that share their parameters are one layer,
    its F the sum of theirs.

    Args:
        config: Architecture of the model.
        blocks: Result of `fisher_blocks`.
        count: Number of heads to remove; whole groups and heads that layers share may be fewer.
        minimum: Number of heads that every layer keeps.
        stacks: Head stacks to remove heads from; None is all.
        whole_groups: Whether heads go by whole groups.

    Raises:
        HeadjaxError: Fewer heads may be removed than asked for, or the model has no such head stack.
    """
    layers: dict[tuple[str, int], list[Order]] = {}
    for group in removals(config, all_heads(config, stacks), whole_groups=whole_groups):
        layers.setdefault((group[0].stack, group[0].layer), []).append(group)
    summed = {place: _summed(config, blocks, groups) for place, groups in layers.items()}
    diagonal = {group: float(summed[place][i, i]) for place, groups in layers.items() for i, group in enumerate(groups)}
    steps = steps_within_minimum(config, tuple(sorted(diagonal, key=lambda group: (diagonal[group], group))), minimum)
    if count > ends(steps)[-1]:
        raise HeadjaxError(f"remove: {count} heads, only {ends(steps)[-1]} may be removed")
    chosen = set(steps[: ends(steps).index(most_of(steps, count))])
    selected: list[Order] = []
    for place, groups in layers.items():
        removed = np.array([group in chosen for group in groups], bool)
        selected.extend(group for group, gone in zip(groups, exchange(summed[place], removed), strict=True) if gone)
    return flat(sorted(selected, key=lambda group: (diagonal[group], group)))


def _summed(config: ModelConfig, blocks: Blocks, groups: Sequence[Order]) -> np.ndarray:
    """Return F of a layer's groups, `[groups, groups]`: the sum over the heads of both, at all depths of the layer."""
    stack, block = groups[0][0].stack, np.zeros((len(groups),) * 2)
    for layer in {head.layer for head in groups[0]}:
        ids = config.attentions()[stack][layer].ids
        member = np.array([[HeadId(stack, layer, head) in group for head in ids] for group in groups], np.float64)
        block += member @ blocks[stack][layer][: len(ids), : len(ids)] @ member.T
    return block


def exchange(block: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """Return the removed heads after exchanging some for kept ones while that lowers s^T F s.

    Args:
        block: F, `[heads, heads]`.
        removed: s, `[heads]` bool.
    """
    removed = removed.copy()
    while removed.any() and not removed.all():
        gone, kept = np.flatnonzero(removed), np.flatnonzero(~removed)
        pull = block @ removed
        # Change of s^T F s when head i comes back and head j goes: F_ii - 2 (Fs)_i + F_jj + 2 (Fs)_j - 2 F_ij.
        back = (np.diagonal(block) - 2.0 * pull)[gone]
        out = (np.diagonal(block) + 2.0 * pull)[kept]
        change = back[:, None] + out[None, :] - 2.0 * block[np.ix_(gone, kept)]
        i, j = np.unravel_index(np.argmin(change), change.shape)
        if change[i, j] >= -1e-9 * max(float(np.trace(block)), 1e-30):
            break
        removed[gone[i]], removed[kept[j]] = False, True
    return removed


@functools.partial(jax.jit, static_argnames=("config", "compute"))
def _blocks(config: ModelConfig, params: Params, batch: Any, gates: Any, compute: Compute) -> dict[str, jax.Array]:
    gradient = gate_gradient(config, params, batch, gates, lambda probe: None, compute).gradient
    by_example = {stack: array.sum(axis=2) for stack, array in gradient.items()}
    return {stack: jnp.einsum("lbh,lbg->lhg", array, array) for stack, array in by_example.items()}
