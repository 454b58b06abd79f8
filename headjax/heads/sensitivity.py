"""Sensitivity: what a small error of a sub-layer's output costs, to second order, from a few backward passes.

With r(y) the output of the model of which |r - r'|^2 / 2 is the measure of damage (`headjax.heads.agreement.rooted`),
an error e of a sub-layer's output costs |J e|^2 / 2, J the Jacobian of r (Gauss-Newton). For random normal z

    E[(z^T J e)^2] = |J e|^2,   z^T J e = sum over tokens of g . e,   g = J^T z

so that one backward pass for each z prices every error of every sub-layer, those that tokens have in common included.
The rise of a loss has besides a part of first order, whose g is the gradient of the loss.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.heads.agreement import agreement_kind, predictions_of, rooted
from headjax.heads.device_sums import replicated_sums
from headjax.heads.program import examples_in
from headjax.heads.refit import Change
from headjax.mesh.distributed import fetch
from headjax.models.config import Batch
from headjax.models.decoding import GenerativeConfig
from headjax.models.model import Model
from headjax.models.tasks import MaskedLanguageModel, Pretraining
from headjax.models.walk import LayerBlock, SubLayerSeen, blocks_of, embed, step
from headjax.nn.state import Compute, State

PROBES = 4
"""Backward passes, each for another z."""

LOGITS = 2**26
"""Most logits of a part of a batch; reading a model's output holds about eight numbers of 4 bytes for each."""

Spot = tuple[str, int, str]
"""A sub-layer: stack, layer, slot."""


class Seen(NamedTuple):
    """A sub-layer on a batch of evaluation examples: its state, its output, and g `[probes, batch, length, width]`."""

    state: State
    layer: SubLayerSeen
    gradient: jax.Array


def in_parts(model: Model, batches: Sequence[Batch]) -> list[Batch]:
    """Return batches in parts of at most `LOGITS` logits over a vocabulary; those on several devices stay whole."""
    config, parts = model.config, list[Batch]()
    task = getattr(config, "task", None)
    if not isinstance(config, GenerativeConfig) and not isinstance(task, MaskedLanguageModel | Pretraining):
        return list(batches)
    for batch in batches:
        count, arrays = examples_in(batch), [array for array in jax.tree.leaves(dict(batch)) if array.ndim > 1]
        numbers = max(array.shape[1] for array in arrays) * int(getattr(config, "vocab_size", 1))
        sharded = any(isinstance(array, jax.Array) and len(array.devices()) > 1 for array in arrays)
        rows = count if sharded else max(LOGITS // numbers, 1)
        for start in range(0, count, rows):
            parts.append({name: array[start : start + rows] for name, array in batch.items()})
    return parts


class Sensitivity:
    """The original model on the examples that damages are evaluated on."""

    def __init__(self, model: Model, compute: Compute = Compute(), *, labels: bool = False) -> None:
        self._model, self._compute, self._labels = model, compute, labels
        self._batches, self._count = 0, 0.0

    def back(self, batch: Batch) -> Iterator[tuple[Any, State, Any, dict[str, Seen]]]:
        """Yield each block, the last one first: the state before it, the cotangents after it, and its sub-layers."""
        states = [embed(self._model, batch, self._compute)]
        for block in blocks_of(self._model):
            states.append(step(block, states[-1], self._compute))
        key = jax.random.fold_in(jax.random.key(0), self._batches)
        cotangent, weight = _read(self._model, states.pop(), key, self._labels, self._compute)
        self._batches, self._count = self._batches + 1, self._count + float(weight)
        for block in blocks_of(self._model, backwards=True):
            state, after = states.pop(), cotangent
            cotangent, sub_layers = _pulled(block, state, after, self._compute)
            yield block, state, after, {slot: Seen(state, *seen) for slot, seen in sub_layers.items()}

    def at(self, block: LayerBlock, state: State, after: Any) -> dict[str, Seen]:
        """Return the sub-layers of a block from the state before it and the cotangents after it."""
        sub_layers = _pulled(block, state, after, self._compute)[1]
        return {slot: Seen(state, *seen) for slot, seen in sub_layers.items()}

    def damages(self, products: Sequence[Any], what: str) -> np.ndarray:
        """Return the damage of each error, from its `products` on every batch."""
        sums = np.concatenate([np.asarray(batch, np.float64) for batch in products], axis=2)
        if not np.isfinite(sums).all():
            raise HeadjaxError(f"{what}: the output is not finite")
        squares: np.ndarray = np.square(sums[:, :PROBES]).sum(axis=(1, 2)) / (2.0 * PROBES)
        return (squares + sums[:, PROBES:].sum(axis=(1, 2))) / max(self._count, 1.0)


def prices(
    model: Model,
    batches: Sequence[Batch],
    changes: Mapping[tuple[Spot, ...], Change],
    compute: Compute = Compute(),
    tell: Callable[[float], None] | None = None,
) -> dict[tuple[Spot, ...], np.ndarray]:
    """Return the damage of each change of output maps by itself, `[changes]`, a mean over the predictions.

    The changed layer is computed as it is, since large changes bend the feed-forward behind an attention. A change is
    made at all of its spots together. Its arrays have an axis of alternatives in front. States of one batch and a copy
    of one layer are held at a time. `tell` is called with the share of the work that is done.
    """
    sensitivity = Sensitivity(model, compute)
    at = {spot: spots for spots in changes for spot in spots}
    placed = {spots: jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), changes[spots]) for spots in changes}
    products_of: dict[tuple[Spot, ...], list[Any]] = {spots: [] for spots in changes}
    parts, blocks = in_parts(model, batches), len(model.blocks())
    for number, batch in enumerate(parts):
        sums: dict[tuple[Spot, ...], Any] = dict.fromkeys(changes, 0.0)
        for done, (block, state, after, seen) in enumerate(sensitivity.back(batch), start=1):
            for slot in seen:
                spots = at.get((block.stack, block.place.value, slot))
                if spots is not None:
                    sums[spots] += _stream_products(block, state, after[0], slot, placed[spots], compute)
            if tell is not None:
                jax.block_until_ready(after)  # of the block before, so that the device stays ahead
                tell((number + done / blocks) / len(parts))
        for spots, product in fetch(sums).items():
            products_of[spots].append(product)
    return {spots: sensitivity.damages(by_batch, "reconstruction") for spots, by_batch in products_of.items()}


def products(changes: Change, evaluated: Seen, seen: SubLayerSeen | None = None) -> jax.Array:
    """Return the sums over tokens of g . e of changed maps, `[changes, probes, batch]`; `seen` has other features."""
    layer = evaluated.layer if seen is None else seen
    return _products(layer.features, layer.output, evaluated.layer.output, evaluated.gradient, changes)


@functools.partial(jax.jit, static_argnames=("slot", "compute"))
def _stream_products(
    block: LayerBlock, state: State, cotangent: Any, slot: str, changes: Change, compute: Compute
) -> jax.Array:
    """Return the sums over tokens of g . e of changed maps: e is the error of the stream after the layer."""
    original, seen = block.sub_layers(state, compute)

    def product(change: Change) -> jax.Array:
        added = jnp.einsum("btn,nw->btw", seen[slot].features, change.weight) + change.bias[None, None]
        after, _ = block.sub_layers(state, compute, {slot: added.astype(original.x.dtype)})
        return jnp.einsum("btw,kbtw->kb", (after.x - original.x).astype(jnp.float32), cotangent.astype(jnp.float32))

    return replicated_sums(jax.vmap(product)(changes))


@jax.jit
def _products(
    features: jax.Array, output: jax.Array, target: jax.Array, gradient: jax.Array, changes: Change
) -> jax.Array:
    """Return the sums of `products`; `output` is that before the change."""
    error = (output - target).astype(jnp.float32)
    features, gradient = features.astype(jnp.float32), gradient.astype(jnp.float32)

    def product(change: Change) -> jax.Array:
        error_after = error + jnp.einsum("btn,nw->btw", features, change.weight) + change.bias[None, None]
        return jnp.einsum("btw,kbtw->kb", error_after, gradient)

    return replicated_sums(jax.lax.map(product, changes))


@functools.partial(jax.jit, static_argnames=("labels", "compute"))
def _read(model: Model, state: State, key: jax.Array, labels: bool, compute: Compute) -> tuple[Any, jax.Array]:
    """Return the cotangents of the stream and the memory after the last block, and the number of predictions."""
    kind = agreement_kind(model.config)

    def root(x: jax.Array, memory: jax.Array | None) -> tuple[Any, jax.Array]:
        output = model.finish(state._replace(x=x, memory=memory), compute)
        predictions = predictions_of(model.config, output, state.batch)
        if not labels:
            return (rooted(kind, predictions),), predictions.weight.sum()
        loss = model.losses(output, state.batch, smoothed=False)
        return (rooted(kind, predictions), loss.total.sum()), loss.weight.sum()

    roots, pull, weight = jax.vjp(root, state.x, state.memory, has_aux=True)

    def probe(key: jax.Array) -> Any:
        z = jax.random.normal(key, roots[0].shape, roots[0].dtype)
        return pull((z, *map(jnp.zeros_like, roots[1:])))

    cotangents = jax.lax.map(probe, jax.random.split(key, PROBES))
    if labels:
        slope = pull((jnp.zeros_like(roots[0]), jnp.ones_like(roots[1])))
        cotangents = jax.tree.map(lambda probes, last: jnp.concatenate([probes, last[None]]), cotangents, slope)
    return cotangents, weight


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
