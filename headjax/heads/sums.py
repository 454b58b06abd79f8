"""Sums of products over calibration examples, block by block: in one model, or in one beside another that changes.

`layer_steps` is the only collector: reconstruction, orders by reconstruction, calibration and the prices of `shrink`
read their sums from its steps. Sums over `FLOAT32_TOKENS` tokens, of two halves of the examples, are in float32, on the
device; the host adds those in float64.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from headjax.core.kind import own_copy
from headjax.core.modules import arrays
from headjax.core.tensors import flatten
from headjax.heads.batches import sum_over
from headjax.heads.refit import RefitSums
from headjax.heads.surgery import output_map
from headjax.mesh.distributed import put_whole_batch
from headjax.mesh.mesh import SPREADING, by_example, check_batch_size, current_mesh
from headjax.mesh.rules import ShardingConfig, shardings
from headjax.models.config import Batch
from headjax.models.inputs import check_batch, counted_at, device_batch
from headjax.models.model import Model
from headjax.models.walk import FEED_FORWARD, LayerBlock, SubLayerSeen, blocks_of, embed, step
from headjax.nn.block import Block, Compute, Probe, State
from headjax.nn.norms import Residual

Tree = TypeVar("Tree")

FLOAT32_TOKENS = 16384
"""Tokens whose products are added in float32 before they go to the host."""

ROWS, BLOCKS = 384, 8
"""Fewest rows of a block of x x^T, and the most blocks."""


class DeviceSums(NamedTuple):
    """Sums as those of `RefitSums`; x x^T is symmetric, so each block of its rows begins at the diagonal."""

    gram: tuple[Any, ...]
    cross: Any
    square: Any

    def whole(self) -> RefitSums:
        halves, _, size = self.gram[0].shape
        gram, start = np.empty((halves, size, size)), 0
        for rows in self.gram:
            stop = start + rows.shape[1]
            gram[:, start:stop, start:] = rows
            gram[:, stop:, start:stop] = rows[:, :, stop - start :].swapaxes(1, 2)
            start = stop
        return RefitSums(gram, self.cross, self.square)


def feature_sums(layer: SubLayerSeen, target_residual: jax.Array, shift: Any) -> DeviceSums:
    """Return the sums of products of a sub-layer's features with themselves and with the target residual."""
    counted = counted_at(layer.mask, layer.output.shape[:2])[:, :, None]
    ones = jnp.ones((*layer.output.shape[:2], 1), jnp.float32)
    features = jnp.where(counted > 0, jnp.concatenate([layer.features.astype(jnp.float32), ones], axis=2), 0.0)
    residual = jnp.where(counted > 0, target_residual, 0.0)
    return replicated_sums(sums_by_half(by_example(features), by_example(residual), shift))


def sums_by_half(features: jax.Array, target_residual: jax.Array, shift: Any) -> DeviceSums:
    """Return the sums of products of one batch, `[batch, length, n]`."""
    x, r = _in_pairs(features, shift), _in_pairs(target_residual, shift)
    product = functools.partial(jnp.einsum, "phtn,phtm->hnm", precision="highest")
    size = x.shape[-1]
    starts = np.linspace(0, size, min(max(size // ROWS, 1), BLOCKS) + 1).astype(int)
    gram = tuple(product(x[..., start:stop], x[..., start:]) for start, stop in itertools.pairwise(starts))
    return DeviceSums(gram, product(x, r), jnp.square(r).sum(axis=(0, 2)))


def _in_pairs(array: jax.Array, shift: Any) -> jax.Array:
    """Return `[batch, length, n]` as `[pairs, 2, length, n]`, zeros beside a last example that has no other.

    Where `shift` is 1, the second of a pair comes first. Halves are exchanged here, since their products are larger;
    `jnp.roll` by a traced number would take six times as long to compile.
    """
    even = jnp.pad(array, ((0, array.shape[0] % 2), (0, 0), (0, 0)))
    pairs = even.reshape(-1, 2, *array.shape[1:])
    return jnp.stack([jax.lax.dynamic_index_in_dim(pairs, at, 1, keepdims=False) for at in (shift, 1 - shift)], axis=1)


def replicated_sums(sums: Tree) -> Tree:
    """Return traced sums whole on every device of the current mesh; as they are without one."""
    return sums if current_mesh(*SPREADING) is None else jax.lax.with_sharding_constraint(sums, PartitionSpec())


def sum_over_batches(parts: Iterable[tuple[Any, int]]) -> Any:
    """Return the sums over all batches, in float64 on the host, of each batch's sums and its number of tokens."""

    def over_several() -> Iterator[Any]:
        """Yield sums over `FLOAT32_TOKENS` tokens at a time, added on the device."""
        total, tokens = None, 0
        for sums, count in parts:
            total = sums if total is None else _added(total, sums)
            tokens += count
            if tokens >= FLOAT32_TOKENS:
                yield total
                total, tokens = None, 0
        if total is not None:
            yield total

    return sum_over(over_several())


@functools.partial(jax.jit, donate_argnums=0)
def _added(total: Tree, sums: Tree) -> Tree:
    added: Tree = jax.tree.map(jnp.add, total, sums)
    return added


Measure = Callable[[Probe], Any]
"""Sums over the tokens of a batch that a probe of an attention takes."""


def spread(model: Model, batches: Iterable[Batch]) -> tuple[Model, list[dict[str, jax.Array]]]:
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


def _added_up(trees: Sequence[Tree]) -> Tree:
    total: Tree = jax.tree.map(lambda *parts: np.sum(parts, axis=0), *trees)
    return total


class States(NamedTuple):
    """States of one batch in both models."""

    teacher: State
    student: State


class _Seen(NamedTuple):
    """A sub-layer on one batch: the stream before it, and the teacher's output or the student's features of it."""

    stream: jax.Array
    array: jax.Array


class LayerReading(NamedTuple):
    """Result of `LayerStep.read`."""

    sums: Mapping[str, RefitSums]  # products of the features, by slot; their targets are 0
    probed: Mapping[str, Any]  # sums of the probe, by slot of the attentions
    outputs: Sequence[Mapping[str, jax.Array]]  # of attentions, by batch and slot, [batch, length, width], if kept


@dataclasses.dataclass
class LayerStep:
    """A layer of two models, the teacher and the student, on all batches; or layers that share their parameters."""

    blocks: list[tuple[Any, Any]]  # the layer in both models, or one for each of those that share their parameters
    states: list[States]  # before the layer; the teacher's are those after it once `sums` have been taken
    compute: Compute
    number: int = 0  # among the model's blocks
    tied: tuple[int, ...] = (0,)  # the layers that share its parameters, in the order of computation
    slots: Collection[str] | None = None  # whose `sums` may be asked for; None is all
    diverged: bool = True  # whether the student differs from the teacher, here or in a layer before
    corrected: bool = True  # whether `sums` make up for the errors of earlier layers
    changed: dict[str, jax.Array] = dataclasses.field(default_factory=dict)  # by `replace_layer`, by path
    _joined: list[dict[str, _Seen]] = dataclasses.field(default_factory=list)
    # By batch, the student's last attention whose sums were taken, then the stream after it.
    _entered: dict[int, dict[str, _Seen | jax.Array]] = dataclasses.field(default_factory=dict)
    _after: list[States] | None = None

    @property
    def block(self) -> LayerBlock:
        """The student's block, the first of those that share their parameters."""
        block: LayerBlock = self.blocks[0][1]
        return block

    @property
    def layer(self) -> Block:
        return self.block.layer

    def replace_layer(self, layer: Block) -> None:
        before = flatten(arrays(self.layer))
        self.changed |= {path: array for path, array in flatten(arrays(layer)).items() if array is not before[path]}
        self.blocks = [(teacher, student.holding(layer)) for teacher, student in self.blocks]
        self.diverged = True

    def read(self, slots: Collection[str] = (), probe: Measure | None = None, *, keep: bool = False) -> LayerReading:
        """Return sums of a layer that both models share, in one pass: of features in some slots, and of a probe.

        `keep` keeps the states before the layer, and the outputs of its attentions.
        """
        if len(self.blocks) > 1:
            readings = []
            for each in self._each():
                readings.append(each.read(slots, probe, keep=keep))
                self._after = each.after()
            return _added_up(readings)
        states, outputs = list(self.states) if keep else self.states, list[dict[str, jax.Array]]()
        self._after = states

        def batch_sums() -> Iterator[tuple[Any, int]]:
            """Yield the sums of every batch and its tokens; its states become those after the layer."""
            for number, (state, _) in enumerate(states):
                options = number % 2, tuple(slots), probe, keep, self.compute
                sums, x, attended = _layer_sums(self.blocks[0][0], state, *options)
                states[number] = States(state._replace(x=x), state._replace(x=x))
                outputs.append(attended)
                yield sums, tokens_of(state)

        sums, probed = sum_over_batches(batch_sums())
        return LayerReading({slot: of_slot.whole() for slot, of_slot in sums.items()}, probed, outputs)

    def sums(self, slot: str) -> tuple[RefitSums, np.ndarray]:
        """Return the products of the student's features with its residual to the target, and the branch's factor.

        Where layers share their parameters, the sums are over all of them, without the errors of earlier layers.
        """
        if len(self.blocks) > 1:
            sums, scales = zip(*(each.sums(slot) for each in self._each()), strict=True)
            return _added_up(sums), scales[-1]
        total, scale = sum_over_batches(self._compared(slot))
        return total.whole(), scale / len(self.states)

    def _compared(self, slot: str) -> Iterator[tuple[tuple[DeviceSums, jax.Array], int]]:
        """Yield the sums of every batch and its tokens; the teacher's state becomes that after the layer."""
        slots = self.layer.config.slots
        later = tuple(each for each in slots[slots.index(slot) + 1 :] if self.slots is None or each in self.slots)
        known, self._joined = self._joined, []
        for number, pair in enumerate(self.states):
            joined = known[number] if known else {}
            if not known:
                joined, x = _teacher(self.blocks[0][0], (slot, *later), self.compute, pair.teacher)
                self.states[number] = pair._replace(teacher=pair.teacher._replace(x=x))
            passed = self._passed(number)
            arguments = pair.student, joined[slot], passed, number % 2, float(self.corrected)
            sums, entered = _compared_sums(self._block_behind(passed), slot, self.compute, *arguments)
            self._joined.append({name: joined[name] for name in later})
            if entered is not None:
                self._entered[number] = {slot: entered}
            yield sums, tokens_of(pair.student)

    def _passed(self, number: int) -> dict[str, Any]:
        """Return a batch's stream after the student's last attention whose sums were taken, with its map of then."""
        entered = self._entered.setdefault(number, {})
        for slot, each in entered.items():
            if isinstance(each, _Seen):
                residual, output = (getattr(self.layer, f"{slot}_residual"), getattr(self.layer, slot).output)
                entered[slot] = _stream_after(residual, output, each, self.compute)
        return entered

    def _block_behind(self, passed: Collection[str]) -> LayerBlock:
        """Return the student's block; attentions that are not computed are the teacher's, so that programs are few."""
        teacher, layer = self.blocks[0][0], own_copy(self.layer)
        for slot in layer.slots[: layer.slots.index(*passed) + 1] if passed else ():
            module = getattr(teacher.layer, slot)
            setattr(layer, slot, module)
            layer.config = dataclasses.replace(layer.config, **{slot: module.kind})
        return teacher.holding(layer) if passed else self.block

    def _each(self) -> Iterator[LayerStep]:
        states = list(self.states)
        for blocks in self.blocks:
            here = LayerStep([blocks], states, self.compute, diverged=self.diverged, corrected=False)
            yield here
            states = here.after()

    def after(self) -> list[States]:
        for teacher, student in self.blocks if self._after is None else ():
            for number, pair in enumerate(self.states):
                whole = pair.teacher if self._joined else step(teacher, pair.teacher, self.compute)
                student_after = whole
                if self.diverged and (passed := self._passed(number)):
                    behind = self._block_behind(passed)
                    student_after = pair.student._replace(x=_layer_after(behind, pair.student, passed, self.compute))
                elif self.diverged:
                    student_after = pair.student if student is None else step(student, pair.student, self.compute)
                self.states[number] = States(whole, student_after)
        self._after = self.states if self._after is None else self._after
        return self._after


def layer_steps(
    model: Model,
    batches: Iterable[Batch],
    compute: Compute = Compute(),
    converted: Model | None = None,
    *,
    slots: Collection[str] | None = None,
    skipped: Collection[tuple[str, int]] = (),
) -> Iterator[LayerStep]:
    """Yield the layers in the order of computation; the next one is computed with what the caller has replaced.

    The student is the model, or `converted`, without the layers `skipped`. Copies of no more than one block's arrays
    are held, and of the streams of all batches between two blocks. Nothing reads the output of the last layer, so it is
    not computed.
    """
    states = [States(state, state) for state in (embed(model, batch, compute) for batch in batches)]
    stacks, diverged = model.config.stacks(), converted is not None
    left = sum(len(stack.layers) for stack in stacks.values()) + len(stacks) - 1
    blocks_of_both = [blocks_of(each) for each in (model, converted) if each is not None]
    pairs = ((blocks[0], blocks[-1]) for blocks in zip(*blocks_of_both, strict=True))
    for number, (teacher, student) in enumerate(pairs):
        is_layer = isinstance(teacher, LayerBlock)
        tied = stacks[teacher.stack].tied_layers(teacher.place.value) if is_layer else (0,)
        is_skipped = is_layer and (teacher.stack, tied[0]) in skipped
        blocks = [(teacher, None if is_skipped else student), *itertools.islice(pairs, len(tied) - 1)]
        here = LayerStep(blocks, states, compute, number, tied, slots, diverged or is_skipped)
        if is_layer and not is_skipped:
            yield here
        left -= len(tied)
        diverged = here.diverged
        if left:
            states = here.after()


def tokens_of(state: State) -> int:
    """Return the number of tokens of a batch, padding included."""
    return int(np.prod(state.x.shape[:2]))


@functools.partial(jax.jit, static_argnames=("slots", "probe", "keep", "compute"))
def _layer_sums(
    block: LayerBlock, state: State, shift: Any, slots: tuple[str, ...], probe: Any, keep: bool, compute: Compute
) -> Any:
    """Return the sums of a layer's features and of a probe on one batch, the next stream, and attentions' outputs."""
    probed: dict[str, Any] = {}

    def note(seen_attention: Probe) -> None:
        probed[seen_attention.slot] = replicated_sums(probe(seen_attention))

    after, seen = block.sub_layers(state, compute, probe=None if probe is None else note)
    sums = {slot: feature_sums(seen[slot], jnp.zeros((*seen[slot].output.shape[:2], 1)), shift) for slot in slots}
    return (sums, probed), by_example(after.x), {slot: seen[slot].output for slot in probed if keep}


@functools.partial(jax.jit, static_argnames=("slots", "compute"))
def _teacher(block: LayerBlock, slots: tuple[str, ...], compute: Compute, state: State) -> tuple[dict[str, _Seen], Any]:
    """Return the teacher's sub-layers on one batch, and its stream after the block: one program for every student."""
    after, seen = block.sub_layers(state, compute)
    return {slot: _Seen(seen[slot].stream, seen[slot].output) for slot in slots}, by_example(after.x)


@functools.partial(jax.jit, static_argnames=("slot", "compute"))
def _compared_sums(
    block: LayerBlock,
    slot: str,
    compute: Compute,
    state: State,
    teacher: _Seen,
    passed: dict[str, jax.Array],
    shift: Any,
    corrected: Any,
) -> tuple[tuple[DeviceSums, jax.Array], _Seen | None]:
    """Return the sums of products of one batch with the factor of the branch `[width]`, and the student's sub-layer.

    The latter is None of a feed-forward, whose features are many. Where a sub-layer of the student has `passed`, the
    stream after it is known. Examples of even number are the first half; `shift` exchanges the halves. `corrected` is 1
    if the errors of earlier layers belong to the target, else 0.
    """
    student = block.sub_layers(state, compute, passed=passed)[1][slot]
    shortcut, branch = student.shortcut.astype(jnp.float32), student.branch.astype(jnp.float32)
    ratio = jnp.where(branch == 0.0, 0.0, shortcut / jnp.where(branch == 0.0, 1.0, branch))
    lag = (teacher.stream - student.stream).astype(jnp.float32)
    residual = (teacher.array - student.output).astype(jnp.float32) + corrected * ratio[None, None, :] * lag
    sums = feature_sums(student, residual, shift), replicated_sums(branch)
    mapped = slot != FEED_FORWARD and output_map(getattr(block.layer, slot)).weight is not None
    return sums, _Seen(student.stream, student.features) if mapped else None


@functools.partial(jax.jit, static_argnames="compute")
def _stream_after(residual: Residual, output: Any, entered: _Seen, compute: Compute) -> jax.Array:
    """Return the stream after an attention of one batch, from its features."""
    (residual, output), (stream, features) = compute.cast((residual, output)), entered
    f = features @ output.kernel[...].reshape(features.shape[-1], stream.shape[-1])
    return by_example(residual.join(stream, f if output.bias is None else f + output.bias[None, None]))


@functools.partial(jax.jit, static_argnames="compute")
def _layer_after(block: LayerBlock, state: State, passed: dict[str, jax.Array], compute: Compute) -> jax.Array:
    """Return the stream after a layer of one batch, from that after one of its sub-layers."""
    return block.sub_layers(state, compute, passed=passed)[0].x
