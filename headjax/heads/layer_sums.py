"""Sums of products over calibration examples, layer by layer, in the original model and in the repaired one."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from headjax.core.modules import arrays
from headjax.core.tensors import flatten
from headjax.heads.refit import RefitSums
from headjax.heads.statistics import sum_over
from headjax.mesh.distributed import put_whole_batch
from headjax.mesh.mesh import SPREADING, by_example, check_batch_size, current_mesh
from headjax.mesh.rules import ShardingConfig, shardings
from headjax.models.config import Batch, head_stack_at
from headjax.models.inputs import check_batch, counted_at, device_batch
from headjax.models.model import Model
from headjax.models.walk import LayerBlock, State, SubLayerSeen, blocks_of, embed, step
from headjax.nn.compute import Compute
from headjax.nn.layer import TransformerLayer

Tree = TypeVar("Tree")

FLOAT32_TOKENS = 16384
"""Tokens that are summed in float32, on the device, before the host adds the sums in float64."""


def spread(model: Model, batches: Sequence[Batch]) -> tuple[Model, list[dict[str, jax.Array]]]:
    """Return the model and the batches, spread over the mesh set with `jax.set_mesh`; as they are without one.

    Examples lie along the mesh's batch axes, parameters as `headjax.mesh.rules` says; a dimension that does not divide
    is left whole.
    """
    if current_mesh(*SPREADING) is None:
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
    return sums if current_mesh(*SPREADING) is None else jax.lax.with_sharding_constraint(sums, PartitionSpec())


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


class _Blocks(NamedTuple):
    """A block of both models; None is a layer that the student goes without."""

    teacher: Any
    student: Any


class States(NamedTuple):
    """States of one batch in both models."""

    teacher: State
    student: State


class _Joined(NamedTuple):
    """A sub-layer of the teacher on one batch: the stream before it, and its output, `[batch, length, width]`."""

    stream: jax.Array
    output: jax.Array


class TwoModels:
    """The original model and one in repair, computed side by side, block by block.

    Copies of no more than one block's arrays are held, and of the streams of all batches between two blocks.

    Attributes:
        apart: Whether the student differs from the teacher in a layer that has been passed, or is about to be.
        changed: Arrays of the student that are not those that it came with, by stack and layer, then by path.
    """

    def __init__(
        self,
        model: Model,
        batches: Sequence[Batch],
        compute: Compute,
        converted: Model | None = None,
        slots: Collection[str] | None = None,
        skipped: Collection[tuple[str, int]] = (),
    ) -> None:
        """Start before the first block; `slots` are those whose sums are asked for, None is all.

        The student goes without the layers `skipped`, by stack and number.
        """
        self.apart = converted is not None
        self.changed: dict[tuple[str, int], dict[str, jax.Array]] = {}
        self._model, self._converted, self._compute, self._slots = model, converted, compute, slots
        self._skipped = skipped
        states = (embed(model, batch, compute) for batch in batches)
        self._states = [States(state, state) for state in states]
        self._blocks: list[_Blocks] = []
        self._seen: list[dict[str, _Joined]] = []

    @property
    def block(self) -> LayerBlock:
        """The student's block at the present place, the first of those that share their parameters."""
        return cast(LayerBlock, self._blocks[0].student)

    @property
    def layer(self) -> TransformerLayer:
        """The student's layer at the present place."""
        return self.block.layer

    def put(self, layer: TransformerLayer) -> None:
        """Put a layer in the place of the student's present one."""
        before, place = flatten(arrays(self.layer)), (self.block.stack, self.block.place.value)
        new = {path: array for path, array in flatten(arrays(layer)).items() if array is not before[path]}
        self.changed.setdefault(place, {}).update(new)
        self._blocks = [_Blocks(each.teacher, each.student.holding(layer)) for each in self._blocks]

    def walk(self) -> Iterator[SubLayer]:
        """Yield the sub-layers in the order of computation; the next one reads the caller's changes in one.

        Nothing reads the output of the last layer, so it is not computed.
        """
        others = blocks_of(self._model if self._converted is None else self._converted)
        pairs = zip(blocks_of(self._model), others, strict=True) if self._converted else ((one, one) for one in others)
        stacks = self._model.config.stacks()
        left = sum(len(stack.layers) for stack in stacks.values()) + len(stacks) - 1
        for teacher, student in itertools.starmap(_Blocks, pairs):
            tied: tuple[int, ...] = (0,)
            if isinstance(teacher, LayerBlock):
                tied = stacks[teacher.stack].tied_layers(teacher.place.value)
            following = itertools.islice(pairs, len(tied) - 1)
            self._blocks, self._seen = [_Blocks(teacher, student), *itertools.starmap(_Blocks, following)], []
            if isinstance(teacher, LayerBlock) and (teacher.stack, teacher.place.value) in self._skipped:
                self.apart, self._blocks = True, [_Blocks(teacher, None)]
            elif isinstance(teacher, LayerBlock):
                for slot in teacher.layer.config.slots:
                    yield SubLayer(teacher.stack, tied, slot)
            left -= len(tied)
            for blocks in self._blocks if left else ():
                self._advance(blocks, self._states)

    def sums(self, slot: str, *, mended: bool = True) -> tuple[RefitSums, np.ndarray]:
        """Return the sums of products of a sub-layer over all batches, and the factor of the branch."""
        if len(self._blocks) == 1:
            sums, scale = sum_over(of_some_batches(self._sums_of(self._blocks[0], slot, self._states, mended=mended)))
            return RefitSums(*sums), scale / len(self._states)
        total: Any = None
        states = list(self._states)  # the walk goes through the tied layers from the first one on
        for blocks in self._blocks:
            found = sum_over(of_some_batches(self._sums_of(blocks, slot, list(states), mended=False)))
            self._seen = []
            total = found if total is None else (jax.tree.map(np.add, total[0], found[0]), found[1])
            self._advance(blocks, states)
        return RefitSums(*total[0]), total[1] / len(states)

    def _sums_of(
        self, blocks: _Blocks, slot: str, states: list[States], *, mended: bool
    ) -> Iterator[tuple[tuple[RefitSums, jax.Array], int]]:
        """Yield the sums of every batch and its tokens; the teacher's state is then that after the block."""
        slots = cast(LayerBlock, blocks.teacher).layer.config.slots
        later = tuple(each for each in slots[slots.index(slot) + 1 :] if self._slots is None or each in self._slots)
        known, self._seen = self._seen, []
        for place, pair in enumerate(states):
            given = known[place] if known else None
            sums, x, seen = layer_sums(tuple(blocks), slot, later, self._compute, pair, given, place % 2, float(mended))
            self._seen.append(seen)
            states[place] = pair if x is None else pair._replace(teacher=pair.teacher._replace(x=x))
            yield sums, int(np.prod(pair.student.x.shape[:2]))

    def _advance(self, blocks: _Blocks, states: list[States]) -> None:
        """Bring states behind a block; the teacher's may be there since the sums were taken."""
        for place, pair in enumerate(states):
            teacher = pair.teacher if self._seen else step(blocks.teacher, pair.teacher, self._compute)
            student = teacher
            if self.apart:
                skips = blocks.student is None
                student = pair.student if skips else step(blocks.student, pair.student, self._compute)
            states[place] = States(teacher, student)


def of_some_batches(parts: Iterable[tuple[Tree, int]]) -> Iterator[Tree]:
    """Yield sums over `FLOAT32_TOKENS` tokens at a time, added on the device, of each batch's sums and its tokens."""
    total: Tree | None = None
    tokens = 0
    for sums, count in parts:
        total = sums if total is None else _added(total, sums)
        tokens += count
        if tokens >= FLOAT32_TOKENS:
            yield total
            total, tokens = None, 0
    if total is not None:
        yield total


@functools.partial(jax.jit, donate_argnums=0)
def _added(total: Tree, sums: Tree) -> Tree:
    """Return the sum of two trees in the place of the first."""
    added: Tree = jax.tree.map(jnp.add, total, sums)
    return added


@functools.partial(jax.jit, static_argnames=("slot", "later", "compute"))
def layer_sums(
    blocks: tuple[Any, Any],
    slot: str,
    later: tuple[str, ...],
    compute: Compute,
    states: States,
    given: dict[str, _Joined] | None,
    shift: Any,
    mended: Any,
) -> tuple[tuple[RefitSums, jax.Array], jax.Array | None, dict[str, _Joined]]:
    """Return the sums of products of one batch with the factor of the branch `[width]`, and what the teacher computed.

    That is the stream after the block and the later sub-layers; None where `given` has the sub-layer. Examples of even
    number are the first half; `shift` exchanges the halves. `mended` is 1 if the errors of earlier layers belong to the
    target, else 0. On a mesh the examples stay spread, and every device has the sums.
    """
    x = None
    if given is None:
        after, seen = blocks[0].sub_layers(states.teacher, compute)
        given, x = {name: _Joined(seen[name].stream, seen[name].output) for name in (slot, *later)}, by_example(after.x)
    teacher, student = given[slot], blocks[1].sub_layers(states.student, compute)[1][slot]
    shortcut, branch = student.shortcut.astype(jnp.float32), student.branch.astype(jnp.float32)
    ratio = jnp.where(branch == 0.0, 0.0, shortcut / jnp.where(branch == 0.0, 1.0, branch))
    behind = (teacher.stream - student.stream).astype(jnp.float32)
    lacking = (teacher.output - student.output).astype(jnp.float32) + mended * ratio[None, None, :] * behind
    halves = feature_sums(student, lacking, shift)
    return (halves, replicated_sums(branch)), x, {name: given[name] for name in later}


def feature_sums(layer: SubLayerSeen, lacking: jax.Array, shift: Any) -> RefitSums:
    """Return the sums of products of a sub-layer's features, and of what its output lacks."""
    counted = counted_at(layer.mask, layer.output.shape[:2])[:, :, None]
    ones = jnp.ones((*layer.output.shape[:2], 1), jnp.float32)
    features = jnp.where(counted > 0, jnp.concatenate([layer.features.astype(jnp.float32), ones], axis=2), 0.0)
    return replicated_sums(sums_by_half(by_example(features), by_example(jnp.where(counted > 0, lacking, 0.0)), shift))


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
