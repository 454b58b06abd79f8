"""Choose heads by Fisher information with the interactions inside a layer (Kwon et al. 2022)."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.core.tensors import Params
from headjax.heads import gates as head_gates
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.ordering import Order, by_score, keep_minimum
from headjax.heads.scores import gate_gradient, own_arrays
from headjax.heads.statistics import sum_over
from headjax.models.compute import Compute
from headjax.models.config import Batch, Gates, ModelConfig
from headjax.models.inputs import device_batch
from headjax.models.model import Model

Blocks = Mapping[str, np.ndarray]
"""Fisher information `[layers, max_heads, max_heads]` by head stack."""


def fisher_blocks(
    model: Model, batches: Iterable[Batch], *, gates: Gates | None = None, compute: Compute = Compute()
) -> dict[str, np.ndarray]:
    """Return the empirical Fisher information of each layer's gates: sum over examples of g g^T, g_h = dL(x) / dxi_h.

    Its diagonal is the score `fisher`. With s_h = 1 for removed heads, s^T F s estimates (up to a factor) the loss that
    removing them together costs.

    Args:
        model: Model to examine.
        batches: Examples with labels.
        gates: `[layers, max_heads]` by head stack, gates at which to differentiate; None is all ones.
        compute: Precision and kernels of the forward pass.

    Raises:
        DataError: There are no batches.
    """
    config = model.config.for_evaluation()
    at = head_gates.ones(config) if gates is None else dict(gates)
    params = own_arrays(config, model.params, compute)
    arrays = (device_batch(config, batch) for batch in batches)
    total: dict[str, np.ndarray] = sum_over(_blocks(config, params, batch, at, compute) for batch in arrays)
    return total


def fisher_selection(
    config: ModelConfig, blocks: Blocks, count: int, minimum: int = 0, stacks: Collection[str] | None = None
) -> Order:
    """Return the heads to remove: their number per layer by the diagonal, then by the whole block (sections 4.1, 4.2).

    A layer loses as many heads as it has among the `count` heads of least diagonal Fisher information. Removed
    heads of a layer are then exchanged for kept ones, the best exchange first, while that lowers s^T F s.

    Args:
        config: Architecture of the model.
        blocks: Result of `fisher_blocks`.
        count: Number of heads to remove.
        minimum: Number of heads that every layer keeps.
        stacks: Head stacks to remove heads from; None is all.

    Raises:
        HeadjaxError: Fewer heads may be removed than asked for, or the model has no such head stack.
    """
    values = head_gates.to_values(
        config, {stack: np.diagonal(array, axis1=1, axis2=2) for stack, array in blocks.items()}
    )
    diagonal = {head: values[head] for head in all_heads(config, stacks)}
    order = keep_minimum(config, by_score(diagonal), minimum)
    if count > len(order):
        raise HeadjaxError(f"remove: {count} heads, only {len(order)} may be removed")
    chosen = set(order[:count])
    selected: list[HeadId] = []
    for stack, layers in config.attentions().items():
        for layer, attention in enumerate(layers if stacks is None or stack in stacks else ()):
            heads = [HeadId(stack, layer, head) for head in attention.ids]
            removed = np.array([head in chosen for head in heads], bool)
            block = blocks[stack][layer][: len(heads), : len(heads)]
            selected.extend(head for head, gone in zip(heads, exchange(block, removed), strict=True) if gone)
    return tuple(sorted(selected, key=lambda head: (diagonal[head], head)))


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
