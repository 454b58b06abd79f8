"""Sums of products over calibration examples, block by block: in one model, or in one beside another that changes.

`BlockWalk` is the only collector: reconstruction, orders by reconstruction, calibration and the prices of `shrink` read
their sums from its steps. Sums over `FLOAT32_TOKENS` tokens are in float32, on the device; the host adds those in
float64.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.modules import arrays
from headjax.core.tensors import flatten
from headjax.heads.device_sums import DeviceSums, Tree, feature_sums, replicated_sums, sum_over_batches
from headjax.heads.program import examples_in
from headjax.heads.refit import RefitSums
from headjax.heads.surgery import output_map
from headjax.mesh.distributed import put_whole_batch
from headjax.mesh.mesh import SPREADING, by_example, check_batch_size, current_mesh
from headjax.mesh.rules import ShardingConfig, shardings
from headjax.models.config import Batch
from headjax.models.inputs import check_batch, device_batch
from headjax.models.model import Model
from headjax.models.walk import FEED_FORWARD, LayerBlock, blocks_of, embed, step
from headjax.nn.block import Block
from headjax.nn.state import Compute, Probe, State

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


def batches_for(batches: Sequence[Any], examples: int) -> list[Any]:
    """Return batches with about `examples` examples, spread over all, since they are sorted by length."""
    size = max(sum(map(examples_in, batches)) / max(len(batches), 1), 1.0)
    count = min(max(round(examples / size), 1), len(batches))
    return [batches[int((place + 0.5) * len(batches) / count)] for place in range(count)]


def held_back(batches: Sequence[Any], examples: int) -> tuple[list[Any], list[Any]]:
    """Return the batches to evaluate changes on, about half of all examples at most, and those to fit them on."""
    if len(batches) < 2:
        return list(batches), list(batches)
    eval_batches = batches_for(batches, min(examples, sum(map(examples_in, batches)) // 2))
    return eval_batches, [batch for batch in batches if all(batch is not other for other in eval_batches)]


class States(NamedTuple):
    """States of one batch in both models."""

    teacher: State
    student: State


class _Joined(NamedTuple):
    """A sub-layer of the teacher on one batch: the stream before it, and its output, `[batch, length, width]`."""

    stream: jax.Array
    output: jax.Array


class _Entered(NamedTuple):
    """A sub-layer of the student on one batch: the stream before it, and its features `[batch, length, features]`."""

    stream: jax.Array
    features: jax.Array


class LayerReading(NamedTuple):
    """Result of `LayerStep.read`.

    Attributes:
        sums: Products of the features, by slot; their targets are 0.
        probed: Sums of the probe, by slot of the attentions.
        outputs: Outputs of the attentions by slot, `[batch, length, width]`, for every batch, if they are kept.
    """

    sums: Mapping[str, RefitSums]
    probed: Mapping[str, Any]
    outputs: Sequence[Mapping[str, jax.Array]]


@dataclasses.dataclass
class LayerStep:
    """A layer of two models, the teacher and the student, on all batches; or layers that share their parameters.

    Attributes:
        blocks: The layer in both models, or one for each of those that share their parameters.
        states: States of every batch before the layer; the teacher's are those after it once `sums` have been taken.
        number: Its place among the model's blocks.
        tied: The layers that share its parameters, in the order of computation.
        slots: Slots whose `sums` may be asked for; None is all.
        diverged: Whether the student differs from the teacher, here or in a layer before.
        corrected: Whether `sums` make up for the errors of earlier layers.
        changed: Arrays that `replace_layer` has put into the student, by path.
    """

    blocks: list[tuple[Any, Any]]
    states: list[States]
    compute: Compute
    number: int = 0
    tied: tuple[int, ...] = (0,)
    slots: Collection[str] | None = None
    diverged: bool = True
    corrected: bool = True
    changed: dict[str, jax.Array] = dataclasses.field(default_factory=dict)
    _joined: list[dict[str, _Joined]] = dataclasses.field(default_factory=list)
    _entered: dict[int, dict[str, _Entered]] = dataclasses.field(default_factory=dict)
    _after: list[States] | None = None

    @property
    def block(self) -> LayerBlock:
        """The student's block, the first of those that share their parameters."""
        block: LayerBlock = self.blocks[0][1]
        return block

    @property
    def layer(self) -> Block:
        """The student's layer."""
        return self.block.layer

    def replace_layer(self, layer: Block) -> None:
        """Put another layer into the student."""
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
        self._after, outputs = list(self.states) if keep else self.states, list[dict[str, jax.Array]]()
        sums, probed = sum_over_batches(self._read(self._after, tuple(slots), probe, outputs, keep))
        return LayerReading({slot: of_slot.whole() for slot, of_slot in sums.items()}, probed, outputs)

    def _read(
        self, states: list[States], slots: tuple[str, ...], probe: Measure | None, outputs: list[Any], keep: bool
    ) -> Iterator[tuple[Any, int]]:
        """Yield the sums of every batch and its tokens; its states become those after the layer."""
        for number, (state, _) in enumerate(states):
            sums, x, attended = _layer_sums(self.blocks[0][0], state, number % 2, slots, probe, keep, self.compute)
            states[number] = States(state._replace(x=x), state._replace(x=x))
            outputs.append(attended)
            yield sums, tokens_of(state)

    def sums(self, slot: str) -> tuple[RefitSums, np.ndarray]:
        """Return the products of the student's features with its residual to the target, and the branch's factor.

        Where layers share their parameters, the sums are over all of them, without the errors of earlier layers.
        """
        if len(self.blocks) > 1:
            sums, scales = zip(*(each.sums(slot) for each in self._each()), strict=True)
            return _added_up(sums), scales[-1]
        found, scale = sum_over_batches(self._compared(slot))
        return found.whole(), scale / len(self.states)

    def _compared(self, slot: str) -> Iterator[tuple[tuple[DeviceSums, jax.Array], int]]:
        """Yield the sums of every batch and its tokens; the teacher's state becomes that after the layer."""
        slots = self.layer.config.slots
        later = tuple(each for each in slots[slots.index(slot) + 1 :] if self.slots is None or each in self.slots)
        known, self._joined = self._joined, []
        for number, pair in enumerate(self.states):
            arguments = pair, known[number] if known else None, self._passed(number), number % 2, float(self.corrected)
            sums, x, joined, entered = _compared_sums(self.blocks[0], slot, later, self.compute, *arguments)
            self._joined.append(joined)
            if entered is not None:
                self._entered[number] = {slot: entered}
            self.states[number] = pair if x is None else pair._replace(teacher=pair.teacher._replace(x=x))
            yield sums, tokens_of(pair.student)

    def _passed(self, number: int) -> dict[str, jax.Array]:
        """Return a batch's stream after the student's last attention whose sums were taken, with its map of now."""
        entered = self._entered.get(number, {})
        return {slot: _stream_after(self.block, slot, each, self.compute) for slot, each in entered.items()}

    def _each(self) -> Iterator[LayerStep]:
        """Yield the layers that share their parameters one after another."""
        states = list(self.states)
        for blocks in self.blocks:
            here = LayerStep([blocks], states, self.compute, diverged=self.diverged, corrected=False)
            yield here
            states = here.after()

    def after(self) -> list[States]:
        """Return the states after the layer."""
        for teacher, student in self.blocks if self._after is None else ():
            for number, pair in enumerate(self.states):
                whole = pair.teacher if self._joined else step(teacher, pair.teacher, self.compute)
                student_after = whole
                if self.diverged and (passed := self._passed(number)):
                    student_after = pair.student._replace(x=_layer_after(student, pair.student, passed, self.compute))
                elif self.diverged:
                    student_after = pair.student if student is None else step(student, pair.student, self.compute)
                self.states[number] = States(whole, student_after)
        self._after = self.states if self._after is None else self._after
        return self._after


class BlockWalk:
    """The way of all batches through a model, layer by layer, and through a student that the caller changes on the way.

    Copies of no more than one block's arrays are held, and of the streams of all batches between two blocks.

    Attributes:
        diverged: Whether the student differs in a layer that has been passed.
        changed: Arrays of the student that are not those that it came with, by stack and layer, then by path.
    """

    def __init__(
        self,
        model: Model,
        batches: Iterable[Batch],
        compute: Compute = Compute(),
        converted: Model | None = None,
        *,
        slots: Collection[str] | None = None,
        skipped: Collection[tuple[str, int]] = (),
    ) -> None:
        """Start before the first block.

        The student is the model, or `converted`; it goes without the layers `skipped`, by stack and number. Sums of
        both models are asked for of `slots`, None is all.
        """
        self.diverged = converted is not None
        self.changed: dict[tuple[str, int], dict[str, jax.Array]] = {}
        self._model, self._converted, self._compute = model, converted, compute
        self._slots, self._skipped = slots, skipped
        states = (embed(model, batch, compute) for batch in batches)
        self._states = [States(state, state) for state in states]

    def __iter__(self) -> Iterator[LayerStep]:
        """Yield the layers in the order of computation; the next one is computed with what the caller has replaced.

        Nothing reads the output of the last layer, so it is not computed.
        """
        stacks = self._model.config.stacks()
        left = sum(len(stack.layers) for stack in stacks.values()) + len(stacks) - 1
        blocks_of_both = [blocks_of(each) for each in (self._model, self._converted) if each is not None]
        pairs = ((blocks[0], blocks[-1]) for blocks in zip(*blocks_of_both, strict=True))
        for number, (teacher, student) in enumerate(pairs):
            is_layer = isinstance(teacher, LayerBlock)
            tied = stacks[teacher.stack].tied_layers(teacher.place.value) if is_layer else (0,)
            skipped = is_layer and (teacher.stack, tied[0]) in self._skipped
            blocks = [(teacher, None if skipped else student), *itertools.islice(pairs, len(tied) - 1)]
            options: dict[str, Any] = {"number": number, "tied": tied, "slots": self._slots}
            here = LayerStep(blocks, self._states, self._compute, diverged=self.diverged or skipped, **options)
            if is_layer and not skipped:
                self.changed[teacher.stack, tied[0]] = here.changed
                yield here
            left -= len(tied)
            self.diverged = here.diverged
            if left:
                self._states = here.after()


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


@functools.partial(jax.jit, static_argnames=("slot", "later", "compute"))
def _compared_sums(
    blocks: tuple[Any, Any],
    slot: str,
    later: tuple[str, ...],
    compute: Compute,
    states: States,
    joined: dict[str, _Joined] | None,
    passed: dict[str, jax.Array],
    shift: Any,
    corrected: Any,
) -> tuple[tuple[DeviceSums, jax.Array], jax.Array | None, dict[str, _Joined], _Entered | None]:
    """Return the sums of products of one batch with the factor of the branch `[width]`, and what was computed for them.

    That is the teacher's stream after the block and its later sub-layers, None where `joined` has the sub-layer; and
    the student's, None of a feed-forward, whose features are many, and without an output map. Where a sub-layer of the
    student has `passed`, the stream after it is known. Examples of even number are the first half; `shift` exchanges
    the halves. `corrected` is 1 if the errors of earlier layers belong to the target, else 0. On a mesh the examples
    stay spread, and every device has the sums.
    """
    x = None
    if joined is None:
        after, seen = blocks[0].sub_layers(states.teacher, compute)
        joined = {name: _Joined(seen[name].stream, seen[name].output) for name in (slot, *later)}
        x = by_example(after.x)
    teacher, student = joined[slot], blocks[1].sub_layers(states.student, compute, passed=passed)[1][slot]
    shortcut, branch = student.shortcut.astype(jnp.float32), student.branch.astype(jnp.float32)
    ratio = jnp.where(branch == 0.0, 0.0, shortcut / jnp.where(branch == 0.0, 1.0, branch))
    lag = (teacher.stream - student.stream).astype(jnp.float32)
    residual = (teacher.output - student.output).astype(jnp.float32) + corrected * ratio[None, None, :] * lag
    sums = feature_sums(student, residual, shift), replicated_sums(branch)
    mapped = slot != FEED_FORWARD and output_map(getattr(blocks[1].layer, slot)).weight is not None
    entered = _Entered(student.stream, student.features) if mapped else None
    return sums, x, {name: joined[name] for name in later}, entered


@functools.partial(jax.jit, static_argnames=("slot", "compute"))
def _stream_after(block: LayerBlock, slot: str, entered: _Entered, compute: Compute) -> jax.Array:
    """Return the stream after an attention of one batch, its output from its features."""
    layer, (stream, features) = compute.cast(block.layer), entered
    weight, bias = output_map(getattr(layer, slot))
    output = features @ weight[...].reshape(features.shape[-1], stream.shape[-1])
    after: jax.Array = getattr(layer, f"{slot}_residual").join(
        stream, output if bias is None else output + bias[None, None]
    )
    return by_example(after)


@functools.partial(jax.jit, static_argnames="compute")
def _layer_after(block: LayerBlock, state: State, passed: dict[str, jax.Array], compute: Compute) -> jax.Array:
    """Return the stream after a layer of one batch, from that after one of its sub-layers."""
    return block.sub_layers(state, compute, passed=passed)[0].x
