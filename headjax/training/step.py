"""One training step, jitted for a mesh: its state, an objective, its gradient at once or in parts, and the update."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

from headjax.core import tensors as declared
from headjax.core.tensors import Params
from headjax.mesh.distributed import place_copies
from headjax.mesh.mesh import BATCH_AXES, COPY_AXES, Prng, axes_of, batch_sharding, parts_along, replicated, step_key
from headjax.mesh.rules import ShardingConfig, moment_shardings, shardings
from headjax.models.config import Batch, Loss, ModelConfig, Output, declared_model
from headjax.models.model import Model
from headjax.nn.block import Compute, ForwardOptions


class TrainState(NamedTuple):
    """The arrays that a training step reads and writes; also their shapes, or their places on a mesh."""

    step: Any
    params: Params
    optimizer: Any


class StepMetrics(NamedTuple):
    """Measurements of one training step, each a scalar."""

    loss: jax.Array
    gradient_norm: jax.Array
    targets: jax.Array
    tokens: jax.Array


class Objective(NamedTuple):
    """The number that training makes small: `sum_i weights_i * mean(losses_i)`, each mean over its own targets."""

    losses: Callable[[Output, Batch], tuple[Loss, ...]]
    weights: tuple[float, ...] = (1.0,)


class Gradient(NamedTuple):
    """The value of an objective on a batch, and its gradient."""

    loss: jax.Array
    targets: jax.Array
    params: Params


LossesOf = Callable[[Params, jax.Array, Batch], tuple[Loss, ...]]
"""From parameters, a dropout key and a batch to the losses of an objective's terms."""


@dataclasses.dataclass(frozen=True)
class Trainer:
    """A model, and all that a training step of it depends on. Equal ones of any seed share their programs."""

    model: ModelConfig
    optimizer: optax.GradientTransformation
    mesh: Mesh
    compute: Compute = Compute()
    seed: int = dataclasses.field(default=0, compare=False)  # of fresh parameters, and with the step of dropout
    objective: Objective | None = None  # None is the model's own loss on the batch's labels
    accumulate: int = 1  # parts of a batch that are computed one after another
    sharding: ShardingConfig = ShardingConfig()
    prng: Prng = "threefry2x32"

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        """Return the state after a step, which takes the given one's arrays, and the step's measurements."""
        after: tuple[TrainState, StepMetrics] = _program(self)(state, batch, self.number)
        return after

    @property
    def number(self) -> np.uint32:
        """The seed as the program takes it."""
        return np.uint32(self.seed % 2**32)

    def lower(self, state: Any, batch: Any) -> Any:
        """Return the step lowered for arrays of these shapes; compiled, it takes `number` after state and batch."""
        return _program(self).lower(state, batch, self.number)

    def abstract_state(self) -> TrainState:
        """Return the shapes, types and shardings of the state, onto which a checkpoint is restored."""
        tensors, whole = self.model.tensors(), replicated(self.mesh)
        shapes = jax.eval_shape(self._first, declared.abstract(tensors))
        spread = moment_shardings(tensors, self.mesh, self.sharding)
        moments = optax.tree.map_params(
            self.optimizer, lambda _, place: place, shapes.optimizer, spread, transform_non_params=lambda _: whole
        )
        places = TrainState(whole, shardings(tensors, self.mesh, sharding=self.sharding), moments)
        return jax.tree.map(
            lambda shape, place: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place), shapes, places
        )

    def places(self) -> TrainState:
        """Return a `NamedSharding` for every array of the state."""
        return jax.tree.map(lambda each: each.sharding, self.abstract_state())

    def first_state(self, params: Params | None = None) -> TrainState:
        """Return the state before the first step, created in its shards: of copies of parameters, or fresh ones."""
        if params is None:
            return _first_state(self, drawn=True)(jax.random.key(self.seed))
        short = sorted({np.dtype(array.dtype).name for array in jax.tree.leaves(params)} - {"float32"})
        if short:
            warnings.warn(f"model: its {' and '.join(short)} weights are trained, and saved, in float32", stacklevel=2)
        # A copy, since training steps donate their state and must not take the caller's model along.
        return _first_state(self, drawn=False)(place_copies(params, self.places().params))

    def _first(self, params: Params) -> TrainState:
        params = jax.tree.map(lambda array: array.astype(jnp.float32), params)
        return TrainState(jnp.zeros((), jnp.int32), params, self.optimizer.init(params))


@functools.lru_cache(maxsize=4)
def _first_state(trainer: Trainer, drawn: bool) -> Callable[[Any], TrainState]:
    """Return the jitted function of given parameters, or of a key that draws them, that makes the first state."""

    def fresh(key: jax.Array) -> TrainState:
        with jax.sharding.use_abstract_mesh(trainer.mesh.abstract_mesh):
            return trainer._first(trainer.model.initialize(key))

    return jax.jit(fresh if drawn else trainer._first, out_shardings=trainer.places())


@functools.lru_cache(maxsize=2)
def _program(trainer: Trainer) -> Any:
    """Return the jitted step, which donates the state."""
    model, optimizer = trainer.model, trainer.optimizer
    compute = trainer.compute.for_training(sum(len(stack.layers) for stack in model.stacks().values()))
    objective, weights = trainer.objective, trainer.objective.weights if trainer.objective else (1.0,)
    places, whole = trainer.places(), replicated(trainer.mesh)
    moments = moment_shardings(model.tensors(), trainer.mesh, trainer.sharding)

    def step(state: TrainState, batch: Batch, seed: jax.Array) -> tuple[TrainState, StepMetrics]:
        # Attention kernels that XLA cannot partition spread themselves over the mesh they find here.
        with jax.sharding.use_abstract_mesh(trainer.mesh.abstract_mesh):

            def losses_of(params: Params, key: jax.Array, batch: Batch) -> tuple[Loss, ...]:
                fitted = Model(model, params)
                output = fitted.forward(batch, ForwardOptions(key=key, compute=compute))
                return (fitted.losses(output, batch),) if objective is None else objective.losses(output, batch)

            key = step_key(seed, state.step, trainer.prng)
            gradients = gradient(losses_of, weights, state.params, key, batch, trainer.accumulate)
            # First where the parameters lie, or the compiler would spread activations as the moments are; then where
            # the moments lie: under ZeRO every device updates only its own part of the parameters.
            slope = jax.lax.with_sharding_constraint(gradients.params, places.params)
            slope = jax.lax.with_sharding_constraint(slope, moments)
            updates, optimized = optimizer.update(slope, state.optimizer, state.params)
            params = optax.apply_updates(state.params, updates)
            tokens = declared_model(model).count_tokens(batch)
            metrics = StepMetrics(gradients.loss, optax.tree.norm(slope), gradients.targets, tokens)
            return TrainState(state.step + 1, params, optimized), metrics

    placed = (places, batch_sharding(trainer.mesh), whole)
    return jax.jit(step, in_shardings=placed, out_shardings=(places, whole), donate_argnums=0)


def gradient(
    losses_of: LossesOf, weights: Sequence[float], params: Params, key: jax.Array, batch: Batch, parts: int = 1
) -> Gradient:
    """Return the gradient of `sum_i weights_i * mean(losses_i)` over a batch.

    In several parts, one after another, activations are those of one part; the objective then has one term. The mean is
    over the whole batch's targets, so nothing depends on the number of parts, up to rounding, and up to dropout, which
    each part draws with a separate key. Where the current mesh has copies of the model alone, each adds up its own
    gradient, and they are reduced once, after the last part; each copy then draws with a separate key.
    """
    if parts == 1:

        def value(params: Params) -> tuple[jax.Array, jax.Array]:
            terms = losses_of(params, key, batch)
            means = [weight * losses.mean() for weight, losses in zip(weights, terms, strict=True)]
            return functools.reduce(jnp.add, means), terms[0].weight.sum()

        (loss, targets), slope = jax.value_and_grad(value, has_aux=True)(params)
        return Gradient(loss, targets, slope)
    mesh = jax.sharding.get_abstract_mesh()
    copies = not mesh.empty and 1 < mesh.size == parts_along(mesh, COPY_AXES)
    sums = (_summed_by_copies if copies else _summed)(losses_of, params, key, batch, parts)
    (weight,) = weights
    mean = jax.tree.map(lambda array: weight * (array / jnp.maximum(sums.targets, 1.0)), sums)
    return mean._replace(targets=sums.targets)


def _summed(losses_of: LossesOf, params: Params, key: jax.Array, batch: Batch, parts: int) -> Gradient:
    """Return the sum of a batch's losses and its gradient, computed in parts."""

    def total(params: Params, key: jax.Array, part: Batch) -> tuple[jax.Array, jax.Array]:
        (losses,) = losses_of(params, key, part)
        return losses.total.sum(), losses.weight.sum()

    def add(sums: Gradient, part: tuple[jax.Array, Batch]) -> tuple[Gradient, None]:
        index, examples = part
        key_of_part = jax.random.fold_in(key, index)
        (loss, targets), slope = jax.value_and_grad(total, has_aux=True)(params, key_of_part, examples)
        return jax.tree.map(jnp.add, sums, Gradient(loss, targets, slope)), None

    nothing = Gradient(jnp.zeros(()), jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    mesh = jax.sharding.get_abstract_mesh()

    def cut(array: jax.Array) -> jax.Array:
        """`[batch, ...]` as `[parts, batch / parts, ...]`, every device's examples spread evenly over the parts."""
        parted = jnp.swapaxes(array.reshape(array.shape[0] // parts, parts, *array.shape[1:]), 0, 1)
        if mesh.empty or mesh.manual_axes:
            return parted
        return jax.lax.with_sharding_constraint(parted, PartitionSpec(None, axes_of(mesh, BATCH_AXES)))

    return jax.lax.scan(add, nothing, (jnp.arange(parts), jax.tree.map(cut, batch)))[0]


def _summed_by_copies(losses_of: LossesOf, params: Params, key: jax.Array, batch: Batch, parts: int) -> Gradient:
    """Do `_summed` on every copy of the model for its own examples, and reduce the sums at the end."""

    def of_a_copy(params: Params, key: jax.Array, batch: Batch) -> Gradient:
        key_of_copy = jax.random.fold_in(key, jax.lax.axis_index(axes))
        return jax.lax.psum(_summed(losses_of, params, key_of_copy, batch, parts), axes)

    axes = axes_of(jax.sharding.get_abstract_mesh(), BATCH_AXES)
    whole, spread = PartitionSpec(), PartitionSpec(axes)
    # Without the check, JAX leaves the gradient of a copy to itself and does not reduce it in every part.
    placed = jax.shard_map(of_a_copy, in_specs=(whole, whole, spread), out_specs=whole, check_vma=False)
    return placed(params, key, batch)
