"""What changes of layers cost at the model's output, to second order, all from a few backward passes.

A changed layer is computed as it is. With r the output of which |r - r'|^2 / 2 is the measure
(`headjax.heads.agreement.rooted`), and J the Jacobian of r by the stream behind the layer, the difference e of the
stream costs |J e|^2 / 2 (Gauss-Newton). For random normal z

    E[(z^T J e)^2] = |J e|^2,   z^T J e = sum over tokens of g . e,   g = J^T z

so that no layer behind a change is computed again, and each z takes one backward pass for all layers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.heads.agreement import agreement_kind, predictions_of, rooted
from headjax.heads.layer_sums import replicated_sums
from headjax.heads.refit import Change
from headjax.mesh.distributed import fetch
from headjax.models.config import Batch
from headjax.models.model import Model
from headjax.models.walk import LayerBlock, State, blocks_of, embed, step
from headjax.nn.compute import Compute

DRAWS = 2
"""Number of backward passes of every example, each for another z."""

Spot = tuple[str, int, str]
"""A sub-layer: stack, layer, slot."""


def prices(
    model: Model,
    batches: Sequence[Batch],
    changes: Mapping[tuple[Spot, ...], Change],
    compute: Compute = Compute(),
) -> dict[tuple[Spot, ...], np.ndarray]:
    """Return what each of some changes of output maps costs alone, `[changes]`, a mean over the predictions.

    A change is made at all of its spots together. Its arrays have an axis of alternatives in front. Each batch takes
    two forward passes, one of the changed halves of the layers for each alternative, and `DRAWS` backward passes to
    the activations. States of one batch and a copy of one layer are held at a time.
    """
    count = 0.0
    at = {spot: spots for spots in changes for spot in spots}
    placed = {spots: jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), changes[spots]) for spots in changes}
    found = {spots: np.zeros(len(change.bias)) for spots, change in changes.items()}
    for number, batch in enumerate(batches):
        states = [embed(model, batch, compute)]
        for block in blocks_of(model):
            states.append(step(block, states[-1], compute))
        cotangent, weight = _drawn(model, states.pop(), jax.random.fold_in(jax.random.key(0), number), compute)
        sums = dict.fromkeys(changes, 0.0)
        for block in blocks_of(model, backwards=True):
            own = {slot: placed[at[spot]] for slot, spot in _spots(block).items() if spot in at}
            cotangent, products = _pulled(block, states.pop(), cotangent, own, compute)
            for slot, product in products.items():
                sums[at[_spots(block)[slot]]] += product
        for spots, product in fetch(sums).items():
            found[spots] += np.square(np.asarray(product, np.float64)).sum(axis=(1, 2)) / (2.0 * DRAWS)
        count += float(weight)
    if not all(np.isfinite(values).all() for values in found.values()):
        raise HeadjaxError("reconstruction: the output is not finite on the examples that layers are compared on")
    return {spots: values / max(count, 1.0) for spots, values in found.items()}


def _spots(block: Any) -> dict[str, Spot]:
    """Return the sub-layers of a block by slot."""
    slots = block.layer.config.slots if isinstance(block, LayerBlock) else ()
    return {slot: (block.stack, block.place.value, slot) for slot in slots}


@functools.partial(jax.jit, static_argnames="compute")
def _drawn(model: Model, state: State, key: jax.Array, compute: Compute) -> tuple[Any, jax.Array]:
    """Return the cotangents of the stream and the memory after the last block, `[draws, ...]`, and the predictions."""

    def root(x: jax.Array, memory: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        output = model.finish(state._replace(x=x, memory=memory), compute)
        predictions = predictions_of(model.config, output, state.batch)
        return rooted(agreement_kind(model.config), predictions), predictions.weight.sum()

    roots, pull, weight = jax.vjp(root, state.x, state.memory, has_aux=True)
    draw = lambda key: pull(jax.random.normal(key, roots.shape, roots.dtype))  # noqa: E731
    return jax.lax.map(draw, jax.random.split(key, DRAWS)), weight


@functools.partial(jax.jit, static_argnames="compute")
def _pulled(
    block: Any, state: State, cotangent: Any, changes: Mapping[str, Change], compute: Compute
) -> tuple[Any, dict[str, jax.Array]]:
    """Return the cotangents before a block, and by slot the sums of g . e over tokens, `[changes, draws, batch]`."""

    def run(x: jax.Array, memory: jax.Array | None) -> tuple[Any, Any]:
        before = state._replace(x=x, memory=memory)
        after, seen = block.sub_layers(before, compute) if changes else (block(before, compute), {})
        return (after.x, after.memory), {slot: seen[slot].features for slot in changes}

    (whole, _), pull, features = jax.vjp(run, state.x, state.memory, has_aux=True)

    def product(slot: str, change: Change) -> jax.Array:
        added = jnp.einsum("btn,nw->btw", features[slot], change.weight) + change.bias[None, None]
        after, _ = block.sub_layers(state, compute, {slot: added.astype(whole.dtype)})
        error = (after.x - whole).astype(jnp.float32)
        return jnp.einsum("btw,dbtw->db", error, cotangent[0].astype(jnp.float32))

    sums = {slot: jax.vmap(functools.partial(product, slot))(change) for slot, change in changes.items()}
    return jax.vmap(pull)(cotangent), replicated_sums(sums)
