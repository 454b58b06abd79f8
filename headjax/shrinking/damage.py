"""Damage of one changed layer: its input is recorded once, and only later layers are computed again."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.core.tensors import Params
from headjax.heads.effect import Effect
from headjax.heads.prefix import Recorded, record, resume
from headjax.models.compute import Compute
from headjax.models.config import Batch, ModelConfig, Options
from headjax.models.layerwise import Place, Stream, layer_output, place_of
from headjax.models.model import Model


class _Example(NamedTuple):
    """One batch in the original model: its arrays, the input of every layer, and the effect's reading of the output."""

    batch: Any
    recorded: Mapping[str, Recorded]
    result: Any


class Damage:
    """Effect on a model's output of one layer in another form."""

    def __init__(self, model: Model, batches: Sequence[Batch], effect: Effect, compute: Compute) -> None:
        self._model, self._effect, self._compute = model, effect, compute
        self._examples: list[_Example] = []
        for batch in batches:
            result, recorded = _whole(model.config, effect, compute, model.params, batch)
            self._examples.append(_Example(batch, recorded, result))

    def __call__(self, config: ModelConfig, stack: str, layer: int, weights: Params) -> float:
        """Return the effect of a layer with these weights."""
        value = self._effect.value(
            (each.result, self._changed(config, stack, layer, weights, each)) for each in self._examples
        )
        if not np.isfinite(value):
            raise HeadjaxError(f"damage: {stack}/{layer}: the output of a smaller form is not finite")
        return value

    def _changed(self, config: ModelConfig, stack: str, layer: int, weights: Params, example: _Example) -> Any:
        """Return the effect's reading of the model with another layer."""
        number, params, recorded = jnp.int32(layer), self._model.params, example.recorded
        first = next(iter(self._model.config.stacks()))
        memory = None if stack == first else recorded[first].output
        entering = Stream(recorded[stack].streams[layer], memory)
        after = _layer(
            config, place_of(config, stack, layer), self._compute, params, weights, number, example.batch, entering
        )
        return _rest(
            self._model.config, self._effect, self._compute, stack, params, number + 1, example.batch, recorded, after
        )


@functools.partial(jax.jit, static_argnames=("config", "effect", "compute"))
def _whole(
    config: ModelConfig, effect: Effect, compute: Compute, params: Params, batch: Any
) -> tuple[Any, dict[str, Recorded]]:
    output, recorded = record(config, params, batch, Options(compute=compute))
    return effect.read(output, batch), recorded


@functools.partial(jax.jit, static_argnames=("config", "place", "compute"))
def _layer(
    config: ModelConfig,
    place: Place,
    compute: Compute,
    params: Params,
    weights: Params,
    number: jax.Array,
    batch: Any,
    entering: Stream,
) -> jax.Array:
    """Return a layer's output; one program for all layers of one structure."""
    return layer_output(config, params, batch, place, number, weights, entering, Options(compute=compute))[0].hidden


@functools.partial(jax.jit, static_argnames=("config", "effect", "compute", "stack"))
def _rest(
    config: ModelConfig,
    effect: Effect,
    compute: Compute,
    stack: str,
    params: Params,
    start: jax.Array,
    batch: Any,
    recorded: Mapping[str, Recorded],
    hidden: jax.Array,
) -> Any:
    """Return the effect's reading of the original model from a layer on; one program for all layers."""
    # The stream after the last layer stands for that before one more, which there is not: nothing is computed then.
    alone = {stack: recorded[stack]._replace(streams=hidden[None])}
    return effect.read(
        resume(config, params, batch, Options(compute=compute), {**recorded, **alone}, stack, start), batch
    )
