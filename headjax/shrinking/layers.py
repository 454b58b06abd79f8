"""Sums of products of every layer of the original model, in one walk."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.conversion.calibration import Moments, input_sums, moments_of
from headjax.heads.layer_sums import feature_sums, of_some_batches, replicated_sums
from headjax.heads.refit import RefitSums
from headjax.heads.statistics import sum_over
from headjax.mesh.mesh import by_example
from headjax.models.walk import LayerBlock, State, step
from headjax.nn.compute import Compute


class LayerSums(NamedTuple):
    """A layer of the original model on the solved batches.

    Attributes:
        states: what enters it, by batch.
        outputs: outputs of its attentions by slot, by batch.
        sums: products of the features, by slot.
        moments: of the inputs of its attentions, by slot.
    """

    states: Sequence[State]
    outputs: Sequence[Mapping[str, jax.Array]]
    sums: Mapping[str, RefitSums]
    moments: Mapping[str, Moments]


def walk(blocks: Iterable[Any], states: list[State], compute: Compute) -> Iterator[tuple[int, LayerBlock, LayerSums]]:
    """Yield every block that is a layer with its number and its sums; no more than one layer's are held."""
    for number, block in enumerate(blocks):
        if isinstance(block, LayerBlock):
            after, outputs = list[State](), list[Mapping[str, jax.Array]]()
            sums, inputs = together(_through(block, states, compute, after, outputs), states)
            moments = {slot: moments_of([found]) for slot, found in inputs.items()}
            own = {slot: RefitSums(*found) for slot, found in sums.items()}
            yield number, block, LayerSums(states, outputs, own, moments)
            states = after
        else:
            states = [step(block, state, compute) for state in states]


def _through(
    block: LayerBlock, states: Sequence[State], compute: Compute, after: list[State], outputs: list[Any]
) -> Iterator[Any]:
    """Yield the sums of every batch; append the states after the layer, and its outputs."""
    for place, state in enumerate(states):
        sums, x, output = _products(block, state, compute, place % 2)
        after.append(state._replace(x=x))
        outputs.append(output)
        yield sums


def together(sums: Iterable[Any], states: Sequence[State]) -> Any:
    """Return the sums over all batches, those of every few added on the device."""
    tokens = (int(np.prod(state.x.shape[:2])) for state in states)
    return sum_over(of_some_batches(zip(sums, tokens, strict=True)))


@functools.partial(jax.jit, static_argnames="compute")
def _products(block: LayerBlock, state: State, compute: Compute, shift: Any) -> Any:
    """Return the sums of a layer's features and of its inputs, the next stream, and its attentions' outputs."""
    inputs: dict[str, Any] = {}

    def note(probe: Any) -> None:
        inputs[probe.slot] = replicated_sums(input_sums(probe))

    after, seen = block.sub_layers(state, compute, probe=note)
    sums = {slot: feature_sums(layer, jnp.zeros((*layer.output.shape[:2], 1)), shift) for slot, layer in seen.items()}
    return (sums, inputs), by_example(after.x), {slot: seen[slot].output for slot in inputs}
