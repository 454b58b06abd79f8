"""Measures of training along depth: variances of sub-layers, gradient norms and update ratios of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from headjax.core.tensors import Params
from headjax.mesh.mesh import replicated
from headjax.mesh.random_bits import Prng, step_key
from headjax.models.compute import Compute
from headjax.models.config import Batch, ModelConfig, Options
from headjax.models.hooks import Joining
from headjax.models.observe import Observing, variance
from headjax.models.shared_stack import SharedLayerGroup
from headjax.training.recording import read_metrics
from headjax.training.state import TrainState
from headjax.training.step import NumberedStep, StepMetrics


class Depth(NamedTuple):
    """One training step along depth, by stack, from the first to the last.

    Attributes:
        branch_variance: `[sub-layers]` Var[f_i], with dropout, over tokens that are no padding.
        stream_variance: `[sub-layers]` variance of the stream after each sub-layer, over the same.
        gradient_norm: `[layers]` norm of the gradient of a layer's parameters, before clipping.
        update_ratio: `[layers]` norm of the update of a layer's parameters over the norm they had.
    """

    branch_variance: dict[str, jax.Array]
    stream_variance: dict[str, jax.Array]
    gradient_norm: dict[str, jax.Array]
    update_ratio: dict[str, jax.Array]


def depth_measurement(
    model: ModelConfig, mesh: Mesh, *, compute: Compute, seed: int, prng: Prng = "threefry2x32"
) -> Callable[[Params, Params, Batch, int], Depth]:
    """The jitted measurement of a training step, from the parameters before and after it, its batch and its number.

    The gradient is computed once more, with the dropout of that step and the whole batch at once. Steps are counted
    from 0.
    """

    def measure(before: Params, after: Params, batch: Batch, step: jax.Array) -> Depth:
        key = step_key(seed, step, prng)

        def loss(params: Params) -> tuple[jax.Array, Any]:
            observing = Observing(_variances)
            output = model.apply(params, batch, Options(key=key, compute=compute, hooks=observing))
            return model.loss(output, batch).mean(), observing.records

        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            gradient, observed = jax.grad(loss, has_aux=True)(before)
        moved = layer_norms(model, jax.tree.map(jnp.subtract, after, before))
        norms = layer_norms(model, before)
        return Depth(
            {name: jnp.stack([branch for branch, _ in records]) for name, records in observed.items()},
            {name: jnp.stack([stream for _, stream in records]) for name, records in observed.items()},
            layer_norms(model, gradient),
            {name: moved[name] / jnp.maximum(norms[name], jnp.finfo(jnp.float32).tiny) for name in norms},
        )

    return jax.jit(measure, out_shardings=replicated(mesh))


def diagnosed(
    step: NumberedStep,
    measure: Callable[[Params, Params, Batch, int], Depth],
    every: int,
    write: Callable[[int, Mapping[str, float]], None],
) -> NumberedStep:
    """Return the step with a record along depth at regular intervals.

    Args:
        step: one that donates the state it is given.
        measure: `depth_measurement`'s result.
        every: steps between records; 0 takes none.
        write: takes a step's number and its record.
    """
    if every == 0:
        return step

    def measured_along(number: int, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        if number % every:
            return step(number, state, batch)
        before = jax.tree.map(jnp.copy, state.params)
        state, measured = step(number, state, batch)
        write(number, depth_record(measure(before, state.params, batch, number - 1)))
        return state, measured

    return measured_along


def _variances(joining: Joining, _: Any) -> tuple[jax.Array, Any, tuple[jax.Array, jax.Array]]:
    residual, x = joining.residual, joining.x
    output = joining.f(residual.enter(x))
    stream = residual.join(x, output)
    return stream, (), (variance(output, joining.mask), variance(stream, joining.mask))


def layer_norms(model: ModelConfig, params: Params) -> dict[str, jax.Array]:
    """By stack, `[layers]` the Euclidean norm of each layer's arrays; layers that share them have the same."""
    norms = {}
    for name, stack in model.stacks().items():
        by_group = []
        for group in stack.groups:
            if isinstance(group, SharedLayerGroup):
                by_group.append(jnp.broadcast_to(optax.tree.norm(params[name][group.name]), (group.count,)))
            else:
                by_group.append(jax.vmap(optax.tree.norm)(params[name][group.name]))
        norms[name] = jnp.concatenate(by_group)
    return norms


def depth_record(depth: Depth) -> dict[str, float]:
    """Return the values for `metrics.jsonl`, named `depth/<measure>/<stack>/<number>` with numbers counted from 0."""
    return {
        f"depth/{measure}/{stack}/{number}": float(value)
        for measure, by_stack in depth._asdict().items()
        for stack, values in by_stack.items()
        for number, value in enumerate(np.asarray(values))
    }


def read_depth(path: Path, measure: str, stack: str) -> dict[int, Sequence[float]]:
    """Return a measure along depth by training step, from a run's `metrics.jsonl`.

    Args:
        path: the file.
        measure: a field of `Depth`.
        stack: name of the stack.
    """
    prefix = f"depth/{measure}/{stack}/"
    found: dict[int, Sequence[float]] = {}
    for record in read_metrics(path):
        values = {int(name.removeprefix(prefix)): value for name, value in record.items() if name.startswith(prefix)}
        if values:
            found[record["step"]] = [values[number] for number in sorted(values)]
    return found
