"""Sensitivity: what a small error of a sub-layer's output costs, to second order, from a few backward passes.

With r(y) the output of the model of which |r - r'|^2 / 2 is the measure of damage (`headjax.heads.agreement.rooted`),
an error e of a sub-layer's output costs |J e|^2 / 2, J the Jacobian of r. For random signs or normal numbers z

    E[(z^T J e)^2] = |J e|^2,   z^T J e = sum over tokens of g . e,   g = J^T z

so that one backward pass for each z prices every error of every sub-layer, those that tokens have in common included.
The rise of a loss has besides a part of first order, whose g is the gradient of the loss.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.heads.agreement import agreement_kind, predictions_of, rooted
from headjax.models.config import Batch
from headjax.models.model import Model
from headjax.models.walk import LayerBlock, State, SubLayerSeen, embed, step
from headjax.nn.compute import Compute

PROBES = 4
"""Backward passes, each for other numbers z."""


class Seen(NamedTuple):
    """A sub-layer on a batch of the judged examples: its state, its output, and g `[probes, batch, length, width]`."""

    state: State
    layer: SubLayerSeen
    gradient: jax.Array


class _Example(NamedTuple):
    """One batch in the original model: the states before all blocks, and the cotangents of the streams after them."""

    states: list[Any]
    cotangents: list[Any]


class Sensitivity:
    """The original model on the examples that damages are judged on.

    Attributes:
        blocks: the model's blocks.
    """

    def __init__(
        self, model: Model, batches: Sequence[Batch], compute: Compute, *, labels: bool = False, seed: int = 0
    ) -> None:
        self.blocks: list[Any] = list(model.blocks())
        self._compute, self._examples, self._count = compute, list[_Example](), 0.0
        for number, batch in enumerate(batches):
            states = [embed(model, batch, compute)]
            for block in self.blocks:
                states.append(step(block, states[-1], compute))
            key = jax.random.fold_in(jax.random.key(seed), number)
            cotangent, weight = _read(model, states.pop(), key, labels, compute)
            cotangents = [cotangent]
            for block, state in zip(self.blocks[:0:-1], states[:0:-1], strict=True):
                cotangents.append(_pulled(block, state, cotangents[-1], compute)[0])
            self._examples.append(_Example(states, cotangents[::-1]))
            self._count += float(weight)

    def at(self, number: int) -> Iterator[dict[str, Seen]]:
        """Yield the sub-layers of a block, batch by batch."""
        for example in self._examples:
            state = example.states[number]
            _, found = _pulled(self.blocks[number], state, example.cotangents[number], self._compute)
            yield {slot: Seen(state, *seen) for slot, seen in found.items()}

    def damages(self, products: Sequence[Any], what: str) -> np.ndarray:
        """Return the damage of each of some errors, from sums over tokens of g . e `[errors, probes, batch]`."""
        sums = np.concatenate([np.asarray(batch, np.float64) for batch in products], axis=2)
        if not np.isfinite(sums).all():
            raise HeadjaxError(f"{what}: the output is not finite")
        found: np.ndarray = np.square(sums[:, :PROBES]).sum(axis=(1, 2)) / (2.0 * PROBES)
        return (found + sums[:, PROBES:].sum(axis=(1, 2))) / max(self._count, 1.0)


@functools.partial(jax.jit, static_argnames=("labels", "compute"))
def _read(model: Model, state: State, key: jax.Array, labels: bool, compute: Compute) -> tuple[Any, jax.Array]:
    """Return the cotangents of the stream and the memory after the last block, and the number of predictions."""
    kind = agreement_kind(model.config)

    def root(x: jax.Array, memory: jax.Array | None) -> tuple[Any, jax.Array]:
        output = model.finish(state._replace(x=x, memory=memory), compute)
        predictions = predictions_of(model.config, output, state.batch)
        if not labels:
            return (rooted(kind, predictions),), predictions.weight.sum()
        loss = model.config.for_evaluation().loss(output, state.batch)
        return (rooted(kind, predictions), loss.total.sum()), loss.weight.sum()

    roots, pull, weight = jax.vjp(root, state.x, state.memory, has_aux=True)

    def probe(key: jax.Array) -> Any:
        z = jax.random.normal(key, roots[0].shape, roots[0].dtype)
        return pull((z, *map(jnp.zeros_like, roots[1:])))

    found = jax.lax.map(probe, jax.random.split(key, PROBES))
    if labels:
        slope = pull((jnp.zeros_like(roots[0]), jnp.ones_like(roots[1])))
        found = jax.tree.map(lambda probes, one: jnp.concatenate([probes, one[None]]), found, slope)
    return found, weight


@functools.partial(jax.jit, static_argnames="compute")
def _pulled(block: Any, state: State, cotangent: Any, compute: Compute) -> tuple[Any, dict[str, Any]]:
    """Return the cotangents before a block, and its sub-layers with the gradients of their outputs."""

    def run(x: jax.Array, memory: jax.Array | None, added: Any) -> tuple[Any, Any]:
        before, seen = state._replace(x=x, memory=memory), dict[str, SubLayerSeen]()
        if isinstance(block, LayerBlock):
            after, seen = block.sub_layers(before, compute, added)
        else:
            after = block(before, compute)
        return (after.x, after.memory), seen

    added = {}
    if isinstance(block, LayerBlock):
        added = dict.fromkeys(block.layer.config.slots, jnp.zeros(state.x.shape, state.x.dtype))
    _, pull, seen = jax.vjp(run, state.x, state.memory, added, has_aux=True)
    x, memory, gradients = jax.vmap(pull)(cotangent)
    return (x, memory), {slot: (layer, gradients[slot]) for slot, layer in seen.items()}
