"""Rescale kept heads after pruning: gates by least squares, layer by layer, without training."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.attention.formulation import Attention
from headjax.core import history
from headjax.core.errors import DataError, HeadjaxError
from headjax.core.progress import Update
from headjax.core.tensors import Params, Tensor, flatten, map_tensors
from headjax.heads import gates as head_gates
from headjax.heads.head_id import HeadId
from headjax.heads.statistics import counted_queries, output_matrices, sum_over
from headjax.heads.surgery import map_attention
from headjax.models.compute import Compute
from headjax.models.config import HEAD_STACKS, Batch, Gates, ModelConfig, Options
from headjax.models.inputs import device_batch
from headjax.models.layer import Probe
from headjax.models.model import Model

LIMIT = 10.0
"""Largest size of a gate. Larger ones are differences of nearly equal heads, which other examples do not repeat."""


class NormalEquations(NamedTuple):
    """The normal equations of one layer's gates.

    Attributes:
        gram: `[heads, heads]`, sum over tokens of o_g . o_h, with o_h = context_h W_O^h of the pruned model.
        target: `[heads]`, sum over tokens of o_h . t, with t the layer's output without bias in the whole model.
    """

    gram: Any
    target: Any


def rescale(
    model: Model,
    batches: Sequence[Batch],
    removed: Iterable[HeadId],
    *,
    compute: Compute = Compute(),
    progress: Update | None = None,
) -> dict[str, jax.Array]:
    """Return gates of the kept heads that bring each layer closest to its output with all heads.

    This is the mask tuning of Kwon et al. (2022), section 4.3, on the attention output:

        min over xi of sum over tokens || sum_(h kept) xi_h o_h - sum_(all h) o'_h ||^2

    o_h are the heads' outputs in the pruned model, whose earlier layers already have their new gates, o'_h those in the
    whole model. Layers with both removed and kept heads are solved in order, one pass over the batches each. Where the
    equations leave a gate open (heads that write nothing, or the same), the solution nearest to 1 is taken. As in the
    paper, a layer with a gate beyond 10 in size keeps its gates of 1, and so do all layers after it.

    Args:
        model: Model with all heads.
        batches: A few examples; labels are not needed.
        removed: Heads to remove.
        compute: How to compute.
        progress: Called after every layer with the number of layers done.

    Returns:
        Gates `[layers, max_heads]` by head stack: 0 for removed heads, for `fold_gates`, forwards or both.

    Raises:
        HeadjaxError: A head does not exist.
        DataError: There are no batches.
    """
    if not batches:
        raise DataError("batches: there is no example to rescale heads on")
    config = model.config
    gone = set(removed)
    gates = {stack: np.array(array) for stack, array in head_gates.without(config, gone).items()}
    doubled = [_doubled(device_batch(config, batch)) for batch in batches]
    for done, (stack, layer) in enumerate(_affected(config, gone)):
        current = {name: jnp.asarray(array) for name, array in gates.items()}
        equations = sum_over(
            _equations(config, model.params, batch, current, compute)[stack][layer] for batch in doubled
        )
        ids = config.attentions()[stack][layer].ids
        kept = [i for i, head in enumerate(ids) if HeadId(stack, layer, head) not in gone]
        solved = nearest_to_one(equations.gram[np.ix_(kept, kept)], equations.target[kept])
        if np.abs(solved).max() > LIMIT:
            break
        gates[stack][layer, kept] = solved
        if progress is not None:
            progress(done + 1, {})
    return {stack: jnp.asarray(array) for stack, array in gates.items()}


def nearest_to_one(gram: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the solution of `gram @ gates = target` with the least distance to gates of 1.

    Args:
        gram: `[heads, heads]`, positive semidefinite up to rounding.
        target: `[heads]`.
    """
    change = np.linalg.lstsq(gram, target - gram.sum(axis=1), rcond=1e-6)[0]
    return np.asarray(1.0 + change)


def fold_gates(model: Model, gates: Gates) -> Model:
    """Return the model whose output projections hold these gates: W_O^h becomes xi_h W_O^h.

    Without gates it computes the same as the model with them. Heads with gate 0 are still there, for `prune`.

    Args:
        model: Model to change.
        gates: `[layers, max_heads]` by head stack.

    Raises:
        HeadjaxError: The `output` tensor of a formulation has no head axis, or layers share their parameters but not
            their gates.
    """
    width, stacks = model.config.width, model.config.stacks()

    def fold(stack: str, layer: int, attention: Attention, params: Params) -> tuple[Attention, Params]:
        if not attention.num_heads:
            return attention, params
        tied = np.asarray(gates[stack])[list(stacks[HEAD_STACKS[stack][0]].tied_layers(layer))]
        if (tied != tied[:1]).any():
            raise HeadjaxError(f"{stack} layer {layer}: shares its parameters with layers that have other gates")
        return attention, _scale_outputs(attention, params, gates[stack][layer, : attention.num_heads], width)

    folded = map_attention(model, fold, stacks=list(gates))
    values = {str(head): value for head, value in head_gates.to_values(model.config, gates).items()}
    return folded.replace(history=(*model.history, history.entry("fold_gates", gates=values)))


def _scale_outputs(attention: Attention, params: Params, gates: jax.Array, width: int) -> Params:
    """Return the parameters with every head's slice of `output` times its gate, inside wrapped formulations too."""
    given = flatten(params)

    def scale(path: str, tensor: Tensor) -> jax.Array:
        array = given[path]
        if path.rpartition("/")[2] != "output":
            return array
        if tensor.head_axis is None:
            raise HeadjaxError(f"gates: cannot be folded into {type(attention).__name__}, whose output knows no heads")
        shape = [1] * array.ndim
        shape[tensor.head_axis] = len(gates)
        return array * gates.reshape(shape).astype(array.dtype)

    return map_tensors(scale, attention.tensors(width, width))


def _affected(config: ModelConfig, removed: set[HeadId]) -> list[tuple[str, int]]:
    """Return (head stack, layer) of the layers with both removed and kept heads, in the order of computation."""
    affected = []
    for name, stack in config.stacks().items():
        own = [head_stack for head_stack, (home, _) in HEAD_STACKS.items() if home == name]
        for layer in range(len(stack.layers)):
            for head_stack in own:
                attention = getattr(stack.layers[layer], HEAD_STACKS[head_stack][1])
                heads = set() if attention is None else {HeadId(head_stack, layer, head) for head in attention.ids}
                if heads & removed and heads - removed:
                    affected.append((head_stack, layer))
    return affected


def _doubled(batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Return every example twice: the first half is for all heads, the second for the kept ones."""
    return {name: jnp.concatenate([array, array]) for name, array in batch.items()}


@functools.partial(jax.jit, static_argnames=("config", "compute"))
def _equations(
    config: ModelConfig, params: Params, batch: Any, gates: Any, compute: Compute
) -> dict[str, list[NormalEquations]]:
    """Return the normal equations of every layer at the current gates."""
    half = next(iter(batch.values())).shape[0] // 2

    def both(array: jax.Array) -> jax.Array:
        whole = jnp.ones((array.shape[0], half, array.shape[1]))
        return jnp.concatenate([whole, jnp.broadcast_to(array[:, None, :], whole.shape)], axis=1)

    # Contexts are gated. A layer's gates are 1 until it is solved and it is solved once, so o_h is never rescaled; the
    # zeros of removed heads are never read.
    options = Options(gates={stack: both(array) for stack, array in gates.items()}, probe=_normal, compute=compute)
    return config.apply(params, batch, options).require_probes()


def _normal(probe: Probe) -> NormalEquations:
    half = probe.attended.context.shape[0] // 2
    outputs = jnp.einsum("bqhv,hvw->bqhw", probe.attended.context.astype(jnp.float32), output_matrices(probe))
    outputs = outputs * counted_queries(probe)[:, :, None, None]
    target, own = outputs[:half].sum(axis=2), outputs[half:]
    return NormalEquations(jnp.einsum("bqgw,bqhw->gh", own, own), jnp.einsum("bqhw,bqw->h", own, target))
