"""Sums of products over calibration examples, layer by layer, in the original model and in the repaired one."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from headjax.heads.refit import RefitSums
from headjax.heads.statistics import sum_over
from headjax.mesh.distributed import put_whole_batch
from headjax.mesh.mesh import by_example, check_batch_size, spreading_mesh
from headjax.mesh.rules import ShardingConfig, shardings
from headjax.models.config import Batch, head_stack_at
from headjax.models.inputs import check_batch, counted_at, device_batch
from headjax.models.model import Model
from headjax.models.walk import LayerBlock, State, embed, step
from headjax.nn.compute import Compute
from headjax.nn.layer import TransformerLayer

Tree = TypeVar("Tree")

FLOAT32_TOKENS = 4096
"""Tokens that are summed in float32, on the device, before the host adds the sums in float64."""


def spread(model: Model, batches: Sequence[Batch]) -> tuple[Model, list[dict[str, jax.Array]]]:
    """Return the model and the batches, spread over the mesh set with `jax.set_mesh`; as they are without one.

    Examples lie along the mesh's batch axes, parameters as `headjax.mesh.rules` says; a dimension that does not divide
    is left whole.
    """
    if spreading_mesh() is None:
        return model, [device_batch(model.config, batch) for batch in batches]
    mesh = jax.sharding.get_mesh()
    placed = []
    for batch in batches:
        check_batch_size(len(next(iter(batch.values()))), mesh)
        placed.append(put_whole_batch(check_batch(model.config, batch), mesh))
    places = shardings(model.config.tensors(), mesh, sharding=ShardingConfig(misfits="replicate"))
    return model.replace(params=jax.device_put(model.params, places)), placed


def replicated_sums(sums: Tree) -> Tree:
    """Return traced sums whole on every device of the current mesh; as they are without one."""
    return sums if spreading_mesh() is None else jax.lax.with_sharding_constraint(sums, PartitionSpec())


class SubLayer(NamedTuple):
    """A sub-layer on the way through a model.

    Attributes:
        stack: Name of its stack.
        block: Layers that share its parameters, in the order of computation.
        slot: Its slot in these layers.
    """

    stack: str
    block: tuple[int, ...]
    slot: str

    @property
    def head_stack(self) -> str:
        """Head stack of an attention sub-layer."""
        return head_stack_at(self.stack, self.slot)


class _States(NamedTuple):
    """States of one batch in both models."""

    teacher: State
    student: State


class TwoModels:
    """The original model and one in repair, computed side by side, block by block.

    Attributes:
        teacher, student: Blocks of both models.
        apart: Whether the student differs from the teacher in a layer that has been passed, or is about to be.
        at: Numbers of the blocks at the present place: layers that share their parameters, or one.
    """

    def __init__(
        self, model: Model, batches: Sequence[Batch], compute: Compute, converted: Model | None = None
    ) -> None:
        self.teacher = model.blocks()
        self.student = list(self.teacher) if converted is None else converted.blocks()
        self.apart = converted is not None
        self.at = range(0)
        self._compute = compute
        states = (embed(model, batch, compute) for batch in batches)
        self._states = [_States(state, state) for state in states]
        self._next: list[State] = []

    @property
    def whole(self) -> TransformerLayer:
        """The original model's layer at the present place."""
        return cast(LayerBlock, self.teacher[self.at.start]).layer

    @property
    def block(self) -> LayerBlock:
        """The student's block at the present place, the first of those that share their parameters."""
        return cast(LayerBlock, self.student[self.at.start])

    @property
    def layer(self) -> TransformerLayer:
        """The student's layer at the present place."""
        return self.block.layer

    def put(self, layer: TransformerLayer) -> None:
        """Put a layer in the place of the student's present one."""
        for number in self.at:
            self.student[number] = cast(LayerBlock, self.student[number]).holding(layer)

    def layers(self, stack: str) -> list[TransformerLayer]:
        """Return the student's layers of a stack."""
        return [each.layer for each in self.student if isinstance(each, LayerBlock) and each.stack == stack]

    def walk(self) -> Iterator[SubLayer]:
        """Yield the sub-layers in the order of computation; the next one reads the caller's changes in one.

        Nothing reads the output of the last layer, so it is not computed.
        """
        number = 0
        while number < len(self.teacher):
            block = self.teacher[number]
            tied: tuple[int, ...] = (number,)
            if isinstance(block, LayerBlock):
                tied = block.config.stacks()[block.stack].tied_layers(block.place.value)
            self.at = range(number, number + len(tied))
            if isinstance(block, LayerBlock):
                for slot in block.layer.config.slots:
                    yield SubLayer(block.stack, tied, slot)
            number = self.at.stop
            if number < len(self.teacher):
                for passed in self.at:
                    self._states = self._after(passed, self._states)

    def sums(self, slot: str, *, mended: bool = True) -> tuple[RefitSums, np.ndarray]:
        """Return the sums of products of a sub-layer over all batches, and the factor of the branch."""
        total: Any = None
        states = self._states
        for number in self.at:
            sums, scale = sum_over(self._sums_of(number, slot, states, mended=mended and len(self.at) == 1))
            total = sums if total is None else jax.tree.map(np.add, total, sums)
            if number != self.at[-1]:
                states = self._after(number, states)
        if len(self.at) > 1:  # the walk goes through them from the first layer on
            self._next = []
        return RefitSums(*total), scale / len(states)

    def _sums_of(
        self, number: int, slot: str, states: list[_States], *, mended: bool
    ) -> Iterator[tuple[RefitSums, jax.Array]]:
        """Yield the sums of every few batches, and keep the teacher's states after the block."""
        self._next = []
        partial: Any = None
        tokens = 0
        blocks = (self.teacher[number], self.student[number])
        for place, pair in enumerate(states):
            sums, x = layer_sums(blocks, slot, self._compute, pair, place % 2, float(mended))
            self._next.append(pair.teacher._replace(x=x))
            partial = sums if partial is None else jax.tree.map(jnp.add, partial, sums)
            tokens += int(np.prod(pair.student.x.shape[:2]))
            if tokens >= FLOAT32_TOKENS or place == len(states) - 1:
                yield partial
                partial, tokens = None, 0

    def _after(self, number: int, states: list[_States]) -> list[_States]:
        """Return the states after a block; the teacher's may have been computed with the sums."""
        known, self._next = self._next, []
        found = []
        for place, pair in enumerate(states):
            teacher = known[place] if known else step(self.teacher[number], pair.teacher, self._compute)
            student = step(self.student[number], pair.student, self._compute) if self.apart else teacher
            found.append(_States(teacher, student))
        return found


@functools.partial(jax.jit, static_argnames=("slot", "compute"))
def layer_sums(
    blocks: tuple[Any, Any], slot: str, compute: Compute, states: _States, shift: Any, mended: Any
) -> tuple[tuple[RefitSums, jax.Array], jax.Array]:
    """Return the sums of products of one batch with the factor of the branch `[width]`, and the teacher's next stream.

    Examples of even number are the first half; `shift` exchanges the halves. `mended` is 1 if the errors of earlier
    layers belong to the target, else 0. On a mesh the examples stay spread, and every device has the sums.
    """
    (after, teacher), (_, student) = (
        block.watched(state, slot, compute) for block, state in zip(blocks, states, strict=True)
    )
    shortcut, branch = student.shortcut.astype(jnp.float32), student.branch.astype(jnp.float32)
    ratio = jnp.where(branch == 0.0, 0.0, shortcut / jnp.where(branch == 0.0, 1.0, branch))
    behind = (teacher.stream - student.stream).astype(jnp.float32)
    lacking = (teacher.output - student.output).astype(jnp.float32) + mended * ratio[None, None, :] * behind
    counted = counted_at(student.mask, lacking.shape[:2])[:, :, None]
    ones = jnp.ones((*lacking.shape[:2], 1), jnp.float32)
    features = jnp.where(counted > 0, jnp.concatenate([student.features.astype(jnp.float32), ones], axis=2), 0.0)
    halves = sums_by_half(by_example(features), by_example(jnp.where(counted > 0, lacking, 0.0)), shift)
    return replicated_sums((halves, branch)), by_example(after.x)


def sums_by_half(features: jax.Array, lacking: jax.Array, shift: Any) -> RefitSums:
    """Return the sums of products of one batch."""
    x, r = _in_pairs(features), _in_pairs(lacking)
    product = functools.partial(jnp.einsum, "phtn,phtm->hnm", precision="highest")
    halves = RefitSums(product(x, x), product(x, r), jnp.square(r).sum(axis=(0, 2)))
    return jax.tree.map(lambda array: jnp.roll(array, shift, axis=0), halves)


def _in_pairs(array: jax.Array) -> jax.Array:
    """Return `[batch, length, n]` as `[pairs, 2, length, n]`, zeros beside a last example that has no other."""
    even = jnp.pad(array, ((0, array.shape[0] % 2), (0, 0), (0, 0)))
    return even.reshape(-1, 2, *array.shape[1:])
