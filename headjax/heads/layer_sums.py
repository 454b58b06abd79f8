"""Sums of products over calibration examples, layer by layer, in the original model and in the repaired one."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from headjax.core.modules import arrays
from headjax.core.tensors import Params
from headjax.heads import gates as head_gates
from headjax.heads.refit import RefitSums
from headjax.heads.statistics import sum_over
from headjax.mesh.distributed import put_whole_batch
from headjax.mesh.mesh import by_example, check_batch_size, spreading_mesh
from headjax.mesh.rules import ShardingConfig, shardings
from headjax.models.compute import Compute
from headjax.models.config import Batch, Gates, ModelConfig, Options, head_stack_at
from headjax.models.inputs import check_batch, counted_at, device_batch
from headjax.models.layer import TransformerLayer
from headjax.models.layerwise import (
    Place,
    Stream,
    SubLayerSeen,
    layer_output,
    place_of,
    stack_end,
    stack_input,
)
from headjax.models.model import Model
from headjax.models.stack import Stack

Tree = TypeVar("Tree")

FLOAT32_TOKENS = 4096
"""Tokens that are summed in float32, on the device, before the host adds the sums in float64."""


class Placed(NamedTuple):
    """A model's parameters and batches on the devices that compute with them."""

    params: Params
    batches: list[dict[str, jax.Array]]


def spread(model: Model, batches: Sequence[Batch]) -> Placed:
    """Return the parameters and the batches, spread over the mesh set with `jax.set_mesh`; as they are without one.

    Examples lie along the mesh's batch axes, parameters as `headjax.mesh.rules` says; a dimension that does not divide
    is left whole.
    """
    if spreading_mesh() is None:
        return Placed(model.params, [device_batch(model.config, batch) for batch in batches])
    mesh = jax.sharding.get_mesh()
    arrays = []
    for batch in batches:
        check_batch_size(len(next(iter(batch.values()))), mesh)
        arrays.append(put_whole_batch(check_batch(model.config, batch), mesh))
    places = shardings(model.config.tensors(), mesh, sharding=ShardingConfig(misfits="replicate"))
    return Placed(jax.device_put(model.params, places), arrays)


def replicated_sums(sums: Tree) -> Tree:
    """Return traced sums whole on every device of the current mesh; as they are without one."""
    return sums if spreading_mesh() is None else jax.lax.with_sharding_constraint(sums, PartitionSpec())


class _Streams(NamedTuple):
    """Hidden states of one batch in both models."""

    teacher: Stream
    student: Stream


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


class TwoModels:
    """The original model and one in repair, computed side by side from given hidden states.

    Attributes:
        config, own_config: Architectures of the original model and of the one in repair.
        teacher, student: Modules of every layer of the whole and of the repaired model, by stack.
        gates: Gates of the repaired model, `[layers, max_heads]` by head stack.
        apart: Whether the student differs from the teacher in a layer that has been passed, or is about to be.
    """

    def __init__(
        self, config: ModelConfig, placed: Placed, gates: Gates, compute: Compute, converted: Model | None = None
    ) -> None:
        self.config, self.apart = config, converted is not None
        self.own_config = config if converted is None else converted.config
        self._params, self._batches = placed
        self.gates, self._whole = dict(gates), head_gates.ones(config)
        self._compute = compute
        self.teacher = _modules(config, self._params)
        own = self.teacher if converted is None else _modules(converted.config, converted.params)
        self.student = {name: list(layers) for name, layers in own.items()}
        self._name = ""
        self._streams: list[_Streams] = []
        self._next: list[Stream] = []
        self._memory: list[tuple[jax.Array | None, jax.Array | None]] = [(None, None)] * len(self._batches)

    def walk(self) -> Iterator[SubLayer]:
        """Yield the sub-layers in the order of computation; the next one reads the caller's changes in one.

        Nothing reads the output of the last layer, so it is not computed.
        """
        stacks = self.config.stacks()
        for name, stack in stacks.items():
            last_stack = name == list(stacks)[-1]
            self.enter(name)
            blocks = _blocks(stack)
            for block in blocks:
                for slot in stack.layers[block[0]].slots:
                    yield SubLayer(name, block, slot)
                if not (last_stack and block == blocks[-1]):
                    self.advance(block)
            if not last_stack:
                self.leave()

    def enter(self, name: str) -> None:
        """Go to the first layer of a stack."""
        self._name, self._streams = name, []
        for batch, (memory, own_memory) in zip(self._batches, self._memory, strict=True):
            run = functools.partial(enter_stack, self.config, self._params, batch, name, self._compute)
            teacher = run(memory)
            self._streams.append(_Streams(teacher, teacher if memory is own_memory else run(own_memory)))

    def sums(self, block: Sequence[int], slot: str, *, mended: bool = True) -> tuple[RefitSums, np.ndarray]:
        """Return the sums of products of a sub-layer over all batches, and the factor of the branch."""
        total: Any = None
        streams = self._streams
        for layer in block:
            sums, scale = sum_over(self._sums_of(layer, slot, streams, mended=mended and len(block) == 1))
            total = sums if total is None else jax.tree.map(np.add, total, sums)
            if layer != block[-1]:
                streams = self._after(layer, streams)
        if len(block) > 1:  # `advance` goes through the block from its first layer on
            self._next = []
        return RefitSums(*total), scale / len(self._batches)

    def _sums_of(
        self, layer: int, slot: str, streams: list[_Streams], *, mended: bool
    ) -> Iterator[tuple[RefitSums, jax.Array]]:
        """Yield the sums of every few batches, and keep the teacher's hidden states after the layer."""
        self._next = []
        partial: Any = None
        tokens = 0
        configs = (self.config, self.own_config)
        places = (place_of(self.config, self._name, layer), place_of(self.own_config, self._name, layer))
        weights = (arrays(self.teacher[self._name][layer]), arrays(self.student[self._name][layer]))
        for number, (batch, pair) in enumerate(zip(self._batches, streams, strict=True)):
            sums, teacher = layer_sums(
                configs, self._params, batch, places, slot, self._compute, layer, weights, pair,
                (self._whole, self.gates), number % 2, float(mended),
            )  # fmt: skip
            self._next.append(teacher)
            partial = sums if partial is None else jax.tree.map(jnp.add, partial, sums)
            tokens += int(np.prod(pair.student.hidden.shape[:2]))
            if tokens >= FLOAT32_TOKENS or number == len(streams) - 1:
                yield partial
                partial, tokens = None, 0

    def advance(self, block: Sequence[int]) -> None:
        """Go past the next layers."""
        for layer in block:
            self._streams = self._after(layer, self._streams)

    def leave(self) -> None:
        """Go past the last layer of the stack; the next one reads its output."""
        run = functools.partial(leave_stack, self.config, self._params, self._name, self._compute)
        outputs = []
        for pair in self._streams:
            teacher = run(pair.teacher)
            outputs.append((teacher, run(pair.student) if self.apart else teacher))
        self._memory = outputs

    def _after(self, layer: int, streams: list[_Streams]) -> list[_Streams]:
        """Return the hidden states after a layer; the teacher's may have been computed with the sums."""
        known, self._next = self._next, []
        found = []
        for number, (batch, pair) in enumerate(zip(self._batches, streams, strict=True)):
            run, own_run = (
                functools.partial(_advance, config, self._params, batch, place, self._compute, layer)
                for config in (self.config, self.own_config)
                for place in (place_of(config, self._name, layer),)
            )
            whole, own = (arrays(layers[self._name][layer]) for layers in (self.teacher, self.student))
            teacher = known[number] if known else run(whole, pair.teacher, self._whole)
            found.append(_Streams(teacher, own_run(own, pair.student, self.gates) if self.apart else teacher))
        return found


def _modules(config: ModelConfig, params: Params) -> dict[str, list[TransformerLayer]]:
    return {name: stack.modules(params[name], config.width) for name, stack in config.stacks().items()}


def _blocks(stack: Stack) -> list[tuple[int, ...]]:
    """Return the layers of a stack, those that share their parameters together."""
    tied = [tuple(stack.tied_layers(layer)) for layer in range(len(stack.layers))]
    return [block for layer, block in enumerate(tied) if block[0] == layer]


@functools.partial(jax.jit, static_argnames=("config", "name", "compute"))
def enter_stack(config: ModelConfig, params: Params, batch: Any, name: str, compute: Compute, memory: Any) -> Stream:
    """Return the input of a stack's first layer, see `headjax.models.layerwise.stack_input`."""
    return by_example(stack_input(config, params, batch, name, memory, compute))


@functools.partial(jax.jit, static_argnames=("config", "name", "compute"))
def leave_stack(config: ModelConfig, params: Params, name: str, compute: Compute, stream: Stream) -> jax.Array:
    """Return a stack's output from the hidden states after its last layer."""
    return by_example(stack_end(config, params, name, stream, compute))


@functools.partial(jax.jit, static_argnames=("config", "place", "compute"))
def _advance(
    config: ModelConfig,
    params: Params,
    batch: Any,
    place: Place,
    compute: Compute,
    layer: Any,
    weights: Params,
    stream: Stream,
    gates: Gates,
) -> Stream:
    options = Options(gates=gates, compute=compute)
    return by_example(layer_output(config, params, batch, place, layer, weights, stream, options)[0])


@functools.partial(jax.jit, static_argnames=("configs", "places", "slot", "compute"))
def layer_sums(
    configs: tuple[ModelConfig, ModelConfig],
    params: Params,
    batch: Any,
    places: tuple[Place, Place],
    slot: str,
    compute: Compute,
    layer: Any,
    weights: tuple[Params, Params],
    streams: _Streams,
    gates: tuple[Gates, Gates],
    shift: Any,
    mended: Any,
) -> tuple[tuple[RefitSums, jax.Array], Stream]:
    """Return the sums of products of one batch with the factor of the branch `[width]`, and the teacher's next stream.

    Examples of even number are the first half; `shift` exchanges the halves. `mended` is 1 if the errors of earlier
    layers belong to the target, else 0. On a mesh the examples stay spread, and every device has the sums.
    """
    (after, teacher), (_, student) = (
        layer_output(config, params, batch, place, layer, own, stream, Options(gates=at, compute=compute), slot)
        for config, place, own, stream, at in zip(configs, places, weights, streams, gates, strict=True)
    )
    teacher, student = cast(SubLayerSeen, teacher), cast(SubLayerSeen, student)
    shortcut, branch = student.shortcut.astype(jnp.float32), student.branch.astype(jnp.float32)
    ratio = jnp.where(branch == 0.0, 0.0, shortcut / jnp.where(branch == 0.0, 1.0, branch))
    behind = (teacher.stream - student.stream).astype(jnp.float32)
    lacking = (teacher.output - student.output).astype(jnp.float32) + mended * ratio[None, None, :] * behind
    counted = counted_at(student.mask, lacking.shape[:2])[:, :, None]
    ones = jnp.ones((*lacking.shape[:2], 1), jnp.float32)
    features = jnp.where(counted > 0, jnp.concatenate([student.features.astype(jnp.float32), ones], axis=2), 0.0)
    halves = sums_by_half(by_example(features), by_example(jnp.where(counted > 0, lacking, 0.0)), shift)
    return replicated_sums((halves, branch)), by_example(after)


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
