"""Damage of changed blocks: what enters every block is recorded once, and only later blocks are computed again."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.heads.effect import OutputChange
from headjax.models.config import Batch
from headjax.models.model import Model
from headjax.models.walk import LayerBlock, embed, step
from headjax.nn.compute import Compute


class _Example(NamedTuple):
    """One batch in the original model: the state before every block, and the effect's reading of the output."""

    batch: Batch
    states: list[Any]
    result: Any


class Damage:
    """Effect on a model's output of other layers in the place of some of its own.

    Attributes:
        blocks: The model's blocks.
    """

    def __init__(self, model: Model, batches: Sequence[Batch], effect: OutputChange, compute: Compute) -> None:
        self.blocks: list[Any] = [*model.blocks()]
        self._model, self._effect, self._compute = model, effect, compute
        self._examples: list[_Example] = []
        for batch in batches:
            *states, last = self._through(0, embed(model, batch, compute), {})
            self._examples.append(_Example(batch, states, self._read(last, batch)))

    def block(self, stack: str, layer: int) -> int:
        """Return the number of the block of a layer."""
        places = [(each.stack, each.place.value) if isinstance(each, LayerBlock) else None for each in self.blocks]
        return places.index((stack, layer))

    def __call__(self, changed: Mapping[int, Any], what: str) -> float:
        """Return the effect of other blocks, by number; `what` names them in an error."""
        first = min(changed)
        value = self._effect.value(
            (each.result, self._read(self._through(first, each.states[first], changed)[-1], each.batch))
            for each in self._examples
        )
        if not np.isfinite(value):
            raise HeadjaxError(f"{what}: the output is not finite")
        return value

    def _through(self, first: int, state: Any, changed: Mapping[int, Any]) -> list[Any]:
        """Return the states from the one before a block on."""
        states = [state]
        for number in range(first, len(self.blocks)):
            states.append(step(changed.get(number, self.blocks[number]), states[-1], self._compute))
        return states

    def _read(self, state: Any, batch: Batch) -> Any:
        return _read(self._model, state, batch, self._effect, self._compute)


@functools.partial(jax.jit, static_argnames=("effect", "compute"))
def _read(model: Model, state: Any, batch: Any, effect: OutputChange, compute: Compute) -> Any:
    return effect.read(model.finish(state, compute), batch)
