"""Messages between devices in one run of a compiled program, read from the program's text."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import NamedTuple

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
"""Collective operations as XLA names them."""

_BETWEEN_SLICES = re.compile(r'"xla_megascale_runtime".*_xla_megascale_transfer_type="(\w+)"')
_KINDS_BETWEEN = {"one-to-one": "collective-permute"}

_BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"([a-z]+\d*\w*)\[([\d,]*)\]")
_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z\-]*)\((.*)")
_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) .*\{$")
_CALLED = re.compile(r"(?:calls|body|condition|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_NUMBER = re.compile(r"(\d+)\)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclasses.dataclass(frozen=True)
class Collective:
    """All collectives of one kind.

    Attributes:
        count: how often they run in one run of the program, layers of a scan counted each.
        bytes: the arrays' bytes on one device: of the gathered result for all-gathers, of the operands otherwise.
    """

    count: int
    bytes: int


class _Instruction(NamedTuple):
    name: str
    shape: str
    operation: str
    rest: str


def collectives(text: str) -> dict[str, Collective]:
    """Return the collectives of a compiled program within a slice, by kind; kinds that do not occur have no entry.

    Args:
        text: `jax.stages.Compiled.as_text()`.
    """

    def kind_of(computation: str, instruction: _Instruction) -> str | None:
        kind = instruction.operation.removesuffix("-start")
        if kind == "all-reduce" and "all-reduce-scatter" in computation:
            return "reduce-scatter"  # the TPU compiler fuses all-reduce and slice under this name
        return kind if kind in KINDS else None

    return _counted(text, kind_of)


def between_slices(text: str) -> dict[str, Collective]:
    """Return the messages of a compiled program between slices, over the data-centre network, by kind of collective.

    The TPU compiler splits a collective over several slices into one within each and a transfer by the hosts. Bytes are
    those that one device hands to its host, before what the runtime makes of them.

    Args:
        text: `jax.stages.Compiled.as_text()`.
    """

    def kind_of(computation: str, instruction: _Instruction) -> str | None:
        found = _BETWEEN_SLICES.search(instruction.rest) if instruction.operation == "send" else None
        name = found[1].lower().replace("_", "-") if found else None
        return name and _KINDS_BETWEEN.get(name, name)

    return _counted(text, kind_of)


def _counted(text: str, kind_of: Callable[[str, _Instruction], str | None]) -> dict[str, Collective]:
    """Return the messages summed by kind, which follows from the computation's name and the instruction in it."""
    computations, entry = _computations(text)
    found: dict[str, Collective] = {}
    for name, times in _runs(computations, entry).items():
        instructions = computations[name]
        sizes = {instruction.name: _size(instruction.shape) for instruction in instructions}
        for instruction in instructions:
            if kind := kind_of(name, instruction):
                before = found.get(kind, Collective(0, 0))
                size = _moved(kind, instruction, sizes)
                found[kind] = Collective(before.count + times, before.bytes + times * size)
    return found


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
        elif current is not None and (found := _INSTRUCTION.match(line)):
            computations[current].append(_Instruction(*found.groups()))
    return computations, entry


def _runs(computations: dict[str, list[_Instruction]], entry: str) -> dict[str, int]:
    """Return the number of times that each computation runs in one run of the entry."""
    runs: dict[str, int] = {}

    def visit(name: str, times: int) -> None:
        runs[name] = runs.get(name, 0) + times
        for instruction in computations[name]:
            trips = _trips(instruction, computations) if instruction.operation == "while" else 1
            for called in _called(instruction):
                if called in computations:
                    visit(called, times * trips)

    visit(entry, 1)
    return runs


def _called(instruction: _Instruction) -> list[str]:
    branches = [name for names in _BRANCHES.findall(instruction.rest) for name in names.split(",")]
    return _CALLED.findall(instruction.rest) + [name.strip().lstrip("%") for name in branches]


def _trips(loop: _Instruction, computations: dict[str, list[_Instruction]]) -> int:
    """Return the number of runs of a loop's body: the compiler's note, or the one number in the loop's condition."""
    if known := _TRIPS.search(loop.rest):
        return int(known[1])
    condition = _CONDITION.search(loop.rest)
    body = computations.get(condition[1], []) if condition else []
    bounds = [found[1] for entry in body if entry.operation == "constant" and (found := _NUMBER.match(entry.rest))]
    return int(bounds[0]) if len(bounds) == 1 else 1


def _moved(kind: str, instruction: _Instruction, sizes: dict[str, int]) -> int:
    operands = _operands(instruction.rest)
    given = sum(sizes.get(name, 0) for name in operands)
    if kind != "all-gather":
        return given
    # The result of an asynchronous start also lists the operands.
    return _size(instruction.shape) - (given if instruction.operation.endswith("-start") else 0)


def _operands(rest: str) -> list[str]:
    """Return the names in the parentheses after the operation."""
    depth, end = 1, 0
    while end < len(rest) and depth:
        depth += {"(": 1, ")": -1}.get(rest[end], 0)
        end += 1
    return re.findall(r"%([\w.\-]+)", rest[: end - 1])


def _size(shape: str) -> int:
    """Return the bytes of a shape, a tuple's parts together."""
    return sum(
        _bits(kind) * math.prod(int(size) for size in sizes.split(",") if size) // 8
        for kind, sizes in _ARRAY.findall(shape)
    )


def _bits(kind: str) -> int:
    if kind in _BITS:
        return _BITS[kind]
    digits = re.match(r"[a-z]+(\d+)", kind)
    return int(digits[1]) if digits else 0
