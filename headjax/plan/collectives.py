"""Messages between devices in one run of a compiled program, read from the program's text."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import NamedTuple

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
    found: dict[str, Collective] = {}

    def visit(name: str, times: int) -> None:
        sizes = {instruction.name: _size(instruction.shape) for instruction in computations[name]}
        for instruction in computations[name]:
            if kind := _kind(name, instruction):
                before = found.get(kind, Collective(0, 0))
                moved = times * _moved(kind, instruction, sizes)
                found[kind] = Collective(before.count + times, before.bytes + moved)
            trips = _trips(instruction, computations) if instruction.operation == "while" else 1
            for called in re.findall(r"[\w.\-]+", " ".join(map(" ".join, _CALLED.findall(instruction.rest)))):
                if called in computations:
                    visit(called, times * trips)

    visit(entry, 1)
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
    if known := _TRIPS.search(loop.rest):
        return int(known[1])
    condition = re.search(r"condition=%?([\w.\-]+)", loop.rest)
    body = computations.get(condition[1], []) if condition else []
    constants = [re.match(r"(\d+)\)", entry.rest) for entry in body if entry.operation == "constant"]
    bounds = [int(found[1]) for found in constants if found]
    return bounds[0] if len(bounds) == 1 else 1


def _moved(kind: str, instruction: _Instruction, sizes: dict[str, int]) -> int:
    """Return the bytes of a message."""
    given = sum(sizes.get(name, 0) for name in re.findall(r"%([\w.\-]+)", instruction.rest.split("), ")[0]))
    if kind != "all-gather":
        return given
    # The result of an asynchronous start also lists the operands.
    return _size(instruction.shape) - (given if instruction.operation.endswith("-start") else 0)


def _size(shape: str) -> int:
    """Return the bytes of a shape, a tuple's parts together."""

    def bits(kind: str) -> int:
        digits = re.search(r"\d+", kind)  # bf16, c64, f8e4m3fn; tokens have none
        return 8 if kind == "pred" else int(digits[0]) if digits else 0

    arrays = _ARRAY.findall(shape)
    return sum(bits(kind) * math.prod(int(size) for size in sizes.split(",") if size) // 8 for kind, sizes in arrays)
