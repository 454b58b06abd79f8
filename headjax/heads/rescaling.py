"""Rescale kept heads after pruning: gates by least squares, layer by layer, without training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.attention.module import AttentionModule
from headjax.core import history
from headjax.core.errors import DataError, HeadjaxError
from headjax.core.modules import declared
from headjax.core.progress import Update
from headjax.core.tensors import head_axis, map_tensors
from headjax.heads import gates as head_gates
from headjax.heads.head_id import HeadId, tied_heads
from headjax.heads.layer_sums import SubLayer, TwoModels, spread
from headjax.heads.refit import RefitSums
from headjax.heads.surgery import LayerModule, map_attention
from headjax.mesh.distributed import fetch
from headjax.models.compute import Compute
from headjax.models.config import Batch, Gates
from headjax.models.layerwise import FEED_FORWARD
from headjax.models.model import Model

LIMIT = 10.0
"""Largest size of a gate. Larger ones are differences of nearly equal heads, which other examples do not repeat."""


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
    unpruned model. Layers with both removed and kept heads are solved in order, in one way through both models. Layers
    that share their parameters (ALBERT) have one set of gates, from the sums over all of them. Where the equations
    leave a gate open (heads that write nothing, or the same), the solution nearest to 1 is taken. As in the paper, a
    layer with a gate beyond 10 in size keeps its gates of 1, and so do all layers after it.

    Under a mesh set with `jax.set_mesh` the examples of every batch are spread over its batch axes.

    Args:
        model: Model with all heads.
        batches: A few examples; labels are not needed.
        removed: Heads to remove, as for `prune`.
        compute: How to compute.
        progress: Called after every solved layer with the number of layers done.

    Returns:
        Gates `[layers, max_heads]` by head stack: 0 for removed heads, for `fold_gates`, forwards or both.

    Raises:
        HeadjaxError: A head does not exist, or sums are not finite.
        DataError: There are no batches.
    """
    if not batches:
        raise DataError("batches: there is no example to rescale heads on")
    config = model.config
    gone = {tied for head in removed for tied in tied_heads(config, head)}
    models = TwoModels(config, spread(model, batches), head_gates.without(config, gone), compute)
    waiting, done = {(head.stack, head.layer) for head in gone}, 0
    for at in models.walk() if gone else ():
        places = set() if at.slot == FEED_FORWARD else {(at.head_stack, layer) for layer in at.block}
        if not places & waiting:
            continue
        waiting -= places
        models.apart = True
        ids = config.attentions()[at.head_stack][at.block[0]].ids
        kept = [i for i, head in enumerate(ids) if HeadId(at.head_stack, at.block[0], head) not in gone]
        if kept:
            if not _rescaled(models, at, kept):
                break
            done += 1
            if progress is not None:
                progress(done, {})
        if not waiting:
            break
    return models.gates


def _rescaled(models: TwoModels, at: SubLayer, kept: Sequence[int]) -> bool:
    """Give the kept heads of a layer their gates; return False, with gates as they are, where one is beyond `LIMIT`."""
    solved = _solve(models, at, kept)
    if np.abs(solved).max() > LIMIT:
        return False
    rows = np.array(models.gates[at.head_stack])
    rows[np.ix_(at.block, kept)] = solved
    models.gates[at.head_stack] = jnp.asarray(rows)
    return True


def _solve(models: TwoModels, at: SubLayer, kept: Sequence[int]) -> np.ndarray:
    """Return the gates of the kept heads of a layer."""
    matrices = getattr(models.student[at.stack][at.block[0]], at.slot).output_matrices()
    sums, _ = models.sums(at.block, at.slot, mended=False)
    if not all(np.isfinite(array).all() for array in sums):
        raise HeadjaxError(f"gates: {at.head_stack}/{at.block[0]}: sums over the examples are not finite")
    gram, lacking = _by_head(sums, np.asarray(fetch(matrices), np.float64))
    return 1.0 + np.linalg.lstsq(gram[np.ix_(kept, kept)], lacking[kept], rcond=1e-6)[0]


def _by_head(sums: RefitSums, matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sums over tokens of products of head outputs o_h = c_h W_O^h, from those of contexts c_h.

    Args:
        sums: Sums of a layer's contexts, side by side.
        matrices: W_O^h, `[heads, value_dim, width]`.

    Returns:
        o_g . o_h, `[heads, heads]`, and o_h . r with r the layer's missing output, `[heads]`.
    """
    heads, size, width = matrices.shape
    rows = matrices.reshape(heads * size, width)
    gram = sums.gram.sum(axis=0)[:-1, :-1] * (rows @ rows.T)
    lacking = sums.cross.sum(axis=0)[:-1] * rows
    return gram.reshape(heads, size, heads, size).sum(axis=(1, 3)), lacking.reshape(heads, -1).sum(axis=1)


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

    def fold(found: LayerModule) -> AttentionModule:
        stack, layer, module = found
        if not module.config.num_heads:
            return found.module
        tied = np.asarray(gates[stack])[list(model.config.site(stack, layer).tied)]
        if (tied != tied[:1]).any():
            raise HeadjaxError(f"{stack} layer {layer}: shares its parameters with layers that have other gates")
        return _with_scaled_outputs(module, gates[stack][layer, : module.config.num_heads])

    folded = map_attention(model, fold, list(gates))
    every = head_gates.to_values(model.config, head_gates.filled(model.config, gates))
    values = {str(head): value for head, value in every.items() if head.stack in gates}
    return folded.replace(history=(*model.history, history.entry("fold_gates", gates=values)))


def _with_scaled_outputs(module: AttentionModule, gates: jax.Array) -> AttentionModule:
    """Return the module with every head's slice of `output` times its gate, inside wrapped formulations too."""

    def scale(path: str, tensor: nnx.Param[Any]) -> jax.Array:
        array: jax.Array = tensor.get_raw_value()
        if path.rpartition("/")[2] != "output":
            return array
        axis = head_axis(tensor)
        if axis is None:
            kind = type(module.config).__name__
            raise HeadjaxError(f"gates: cannot be folded into {kind}, whose output knows no heads")
        shape = [1] * array.ndim
        shape[axis] = len(gates)
        return array * gates.reshape(shape).astype(array.dtype)

    return module.like(module.config, map_tensors(scale, declared(module)))
