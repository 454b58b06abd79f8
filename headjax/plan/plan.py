"""Plans of training steps, compiled for a TPU slice on a machine without one, and the messages between its devices."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from headjax.core.errors import ConfigError, require, within
from headjax.core.fields import Size
from headjax.core.memory import STATE
from headjax.core.serialize import from_data
from headjax.core.tensors import count
from headjax.initialization import ModelSource
from headjax.mesh.mesh import Prng, check_batch_size
from headjax.mesh.rules import shardings
from headjax.models.config import ModelConfig
from headjax.nn.attend import target
from headjax.plan.tpu import GIB, Slice
from headjax.training.config import StepConfig

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
BETWEEN = " between slices"

_ARRAY = re.compile(r"([a-z]+\d*\w*)\[([\d,]*)\]")
_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z\-]*)\((.*)")
_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) .*\{$")
_CALLED = re.compile(
    r"(?:calls|body|condition|to_apply|true_computation|false_computation)=%?([\w.\-]+)"
    r"|branch_computations=\{([^}]*)\}"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_TRANSFER = re.compile(r'"xla_megascale_runtime".*_xla_megascale_transfer_type="(\w+)"')


@dataclasses.dataclass(frozen=True)
class Collective:
    """All collectives of one kind."""

    count: int
    bytes: int


class _Instruction(NamedTuple):
    name: str
    shape: str
    operation: str
    rest: str


def collectives(text: str) -> dict[str, Collective]:
    """Return the collectives of a compiled program by kind; kinds that do not occur have no entry.

    The TPU compiler splits a collective over several slices into one within each and a transfer by the hosts. The
    latter are counted apart, as `all-reduce between slices`, with the bytes that one device hands to its host.
    """
    computations, entry = _computations(text)
    by_kind: dict[str, Collective] = {}

    def visit(name: str, times: int) -> None:
        sizes = {instruction.name: _size(instruction.shape) for instruction in computations[name]}
        for instruction in computations[name]:
            if kind := _kind(name, instruction):
                operands = re.findall(r"%([\w.\-]+)", instruction.rest.split("), ")[0])
                moved = sum(sizes.get(operand, 0) for operand in operands)
                if kind == "all-gather":  # the result of an asynchronous start also lists the operands
                    moved = sizes[instruction.name] - (moved if instruction.operation.endswith("-start") else 0)
                before = by_kind.get(kind, Collective(0, 0))
                by_kind[kind] = Collective(before.count + times, before.bytes + times * moved)
            trips = _trips(instruction, computations) if instruction.operation == "while" else 1
            for called in re.findall(r"[\w.\-]+", " ".join(map(" ".join, _CALLED.findall(instruction.rest)))):
                if called in computations:
                    visit(called, times * trips)

    visit(entry, 1)
    return by_kind


def _computations(text: str) -> tuple[dict[str, list[_Instruction]], str]:
    """Return instructions by computation, and the entry's name."""
    computations: dict[str, list[_Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if match := _COMPUTATION.match(line):
            current = match[1]
            computations[current] = []
            entry = current if line.startswith("ENTRY") else entry
        elif line == "}":  # other lines without indentation go on with an instruction: what a kernel says of itself
            current = None
        elif current is not None and (parts := _INSTRUCTION.match(line)):
            computations[current].append(_Instruction(*parts.groups()))
    return computations, entry


def _kind(computation: str, instruction: _Instruction) -> str | None:
    """Return the kind of a message; None for other instructions."""
    if instruction.operation == "send":
        between = _TRANSFER.search(instruction.rest)
        name = between[1].lower().replace("_", "-") if between else None
        return name and name.replace("one-to-one", "collective-permute") + BETWEEN
    kind = instruction.operation.removesuffix("-start")
    if kind == "all-reduce" and "all-reduce-scatter" in computation:
        return "reduce-scatter"  # the TPU compiler fuses all-reduce and slice under this name
    return kind if kind in KINDS else None


def _trips(loop: _Instruction, computations: dict[str, list[_Instruction]]) -> int:
    """Return the number of runs of a loop's body: the compiler's note, or the one number in the loop's condition."""
    if note := _TRIPS.search(loop.rest):
        return int(note[1])
    condition = re.search(r"condition=%?([\w.\-]+)", loop.rest)
    body = computations.get(condition[1], []) if condition else []
    constants = [re.match(r"(\d+)\)", entry.rest) for entry in body if entry.operation == "constant"]
    bounds = [int(match[1]) for match in constants if match]
    return bounds[0] if len(bounds) == 1 else 1


def _size(shape: str) -> int:
    """Return the bytes of a shape, a tuple's parts together."""

    def bits(kind: str) -> int:
        digits = re.search(r"\d+", kind)  # bf16, c64, f8e4m3fn; tokens have none
        return 8 if kind == "pred" else int(digits[0]) if digits else 0

    arrays = _ARRAY.findall(shape)
    return sum(bits(kind) * math.prod(int(size) for size in sizes.split(",") if size) // 8 for kind, sizes in arrays)


BEYOND = 1000
"""Largest training state that is compiled, as a multiple of the slice's memory: the plan says by how much it is too
large. With larger ones the compiler hangs or ends its process."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConfig(StepConfig):
    """A step to plan.

    Attributes:
        length: tokens of an example; of each side in encoder-decoders.
    """

    length: Size


class Plan(NamedTuple):
    """Memory, FLOPs and messages of a training step on a slice, by the compiler.

    Attributes:
        topology: name of the slice.
        batch_size: over all devices.
        length: tokens of an example.
        collectives: by kind: `count`, `bytes`.
    """

    topology: str
    devices: int
    slices: int
    batch_size: Size
    length: Size
    remat: str
    accumulate: Size
    prng: Prng
    fits: bool
    peak_bytes_per_device: int
    hbm_bytes_per_device: int
    flops_per_device: float
    collectives: Mapping[str, Collective]
    compile_seconds: float


def plan_config(data: Mapping[str, Any], length: int | None = None) -> PlanConfig:
    """Read a plan's inputs from a training config; of the data it needs the length alone."""
    needed = {field.name for field in dataclasses.fields(PlanConfig)} - {"length"}
    fields = {name: entry for name, entry in data.items() if name in needed}
    model = ModelSource.of(data).architecture()
    tokens = length or dict(data.get("data", {})).get("length") or getattr(model, "max_length", None)
    tokens = tokens or model.example_length(0) or None
    if tokens is None:
        raise ConfigError("config.data.length: missing, and the model has no limit of positions; give one")
    return from_data(PlanConfig, {**fields, "length": tokens})


def check_plan(config: PlanConfig, where: Slice) -> tuple[ModelConfig, Mesh]:
    """Return the model and the mesh of a plan, before anything is compiled."""
    with within("config"):
        mesh = config.mesh.build(where.devices())
        check_batch_size(config.batch_size, mesh, config.accumulate)
    model = config.architecture()
    examples = f"{config.batch_size:,} examples of {config.length:,} tokens"
    require(config.batch_size * config.length < 2**31, "config.batch_size", f"{examples} are 2**31 tokens or more")
    parameters, memory = count(model.tensors()), where.num_devices * where.chip.hbm_bytes
    needed = f"{parameters:,} parameters in training take at least {STATE * parameters / 1e9:,.3g} GB"
    has = f"of which {where.name} has {memory / 1e9:,.3g}"
    require(STATE * parameters <= BEYOND * memory, "config.model", f"{needed}, {has}")
    shardings(model.tensors(), mesh, sharding=config.sharding)
    return model, mesh


def plan(config: PlanConfig, where: Slice) -> Plan:
    """Compile the training step for a slice."""
    model, mesh = check_plan(config, where)
    trainer = config.trainer(model, mesh, steps=1)
    start = time.perf_counter()
    with target("tpu", where.num_devices, int(where.chip.name[1])):
        lowered = trainer.lower(trainer.abstract_state(), model.example_batch(config.batch_size, config.length))
    sent: Mapping[str, Collective] = {}
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        peak, fits = _needed(str(error)), False
    else:
        peak, fits, sent = compiled.memory_analysis().peak_memory_in_bytes, True, collectives(compiled.as_text())
    return Plan(
        topology=where.name,
        devices=where.num_devices,
        slices=where.slices,
        batch_size=config.batch_size,
        length=config.length,
        remat=config.compute.remat,
        accumulate=config.accumulate,
        prng=config.prng,
        fits=fits,
        peak_bytes_per_device=peak,
        hbm_bytes_per_device=where.chip.hbm_bytes,
        flops_per_device=3.0 * model.flops(config.length) * config.batch_size / where.num_devices,
        collectives=sent,
        compile_seconds=time.perf_counter() - start,
    )


def _needed(message: str) -> int:
    """Return the memory that a program needs, from the compiler's error that there is less."""
    match = re.search(r"Used ([\d.]+)([KMGT]) of [\d.]+[KMGT] hbm|memory required .*?\(([\d.]+)([KMGT])\)", message)
    if match is None:
        raise ConfigError(f"the step cannot be compiled for this slice: {' '.join(message.split())[:300]}")
    number, unit = (match[1], match[2]) if match[1] else (match[3], match[4])
    return int(float(number) * GIB * {"K": 2**-20, "M": 2**-10, "G": 1, "T": 2**10}[unit])
