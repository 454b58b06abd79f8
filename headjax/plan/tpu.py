"""TPU slices by their Cloud names: chips, shapes, memory, and devices to compile for."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from headjax.core.errors import ConfigError, HeadjaxError

GIB = 2**30


class Chip(NamedTuple):
    """A TPU generation."""

    name: str
    units: int  # that Cloud names count for a chip
    devices: int
    dimensions: int
    max_chips: int
    hbm_bytes: int
    compiler: Mapping[str, Any]


# Usable memory: libtpu 0.0.42, November 2026.
CHIPS: Mapping[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip("v2", 2, 2, 2, 256, int(7.48 * GIB), {}),
        Chip("v3", 2, 2, 2, 1024, int(15.48 * GIB), {}),
        Chip("v4", 2, 1, 3, 4096, int(30.75 * GIB), {"chip_config_name": "megacore"}),
        Chip("v5e", 1, 1, 2, 256, int(15.75 * GIB), {}),
        Chip("v5p", 2, 1, 3, 4096, int(95.74 * GIB), {}),
        Chip("v6e", 1, 1, 2, 256, int(31.25 * GIB), {}),
    )
}
"""The generations that a slice can be planned for, with the facts that plans rest on."""

ALIASES = {"v5litepod": "v5e"}
SINGLE_CHIP = frozenset({"v5e", "v6e"})  # generations with slices of one chip

ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
}
"""Variables with which libtpu compiles on a machine without a TPU; any accelerator type will do."""


class Slice(NamedTuple):
    """A TPU slice, or several equal ones that the data-centre network joins."""

    name: str
    chip: Chip
    shape: tuple[int, ...]
    slices: int = 1

    @property
    def num_devices(self) -> int:
        """Number of JAX devices of all slices together."""
        return math.prod(self.shape) * self.slices * self.chip.devices

    @property
    def topology(self) -> str:
        """The compiler's name of one of the slices."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    def devices(self) -> list[jax.Device]:
        """Return devices that programs can be compiled for, not run on."""
        if importlib.util.find_spec("libtpu") is None:
            raise HeadjaxError("compiling for a TPU needs libtpu: pip install 'headjax[tpu]'")
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from jax.experimental import topologies

        options = dict(self.chip.compiler)
        if math.prod(self.shape) == 1:
            options["chips_per_host_bounds"] = (1, 1, 1)
        if self.slices > 1:
            options["num_slices"] = self.slices
        try:
            topology = topologies.get_topology_desc(platform="tpu", topology_name=self.topology, **options)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"topology: the compiler refuses {self.name} ({self.topology}): {reason}") from None
        return list(topology.devices)


def find_slice(name: str) -> Slice:
    """Return the slice of a Cloud name (`v3-32`, `v5e-16`) or of a compiler's topology string (`v3:4x4`).

    `v5e-256x2` are two slices v5e-256. A Cloud name counts cores up to v4 and for v5p, chips for v5e and v6e. Of that
    many chips, a power of two, the shape is the one nearest to a square or a cube.
    """
    match = re.fullmatch(r"(v\d\w*?)(?:-(\d{1,9})(?:x([1-9]\d{0,8}))?|:(\d{1,9}(?:x\d{1,9})*))", name, re.ASCII)
    chip = None if match is None else CHIPS.get(ALIASES.get(match[1], match[1]))
    if match is None or chip is None:
        raise ConfigError(f"topology: unknown TPU slice {name!r}; known: {_known(*CHIPS.values())}")
    if match[4] is not None:
        shape = tuple(map(int, match[4].split("x")))
        if len(shape) != chip.dimensions:
            raise ConfigError(f"topology: {name}: a {chip.name} slice has {chip.dimensions} dimensions")
        return Slice(name, chip, shape)
    size = int(match[2])
    if size not in _sizes(chip):
        raise ConfigError(f"topology: there is no {chip.name}-{size}; known: {_known(chip)}")
    return Slice(name, chip, _shape(size // chip.units, chip.dimensions), int(match[3] or 1))


def _sizes(chip: Chip) -> list[int]:
    """Return the numbers in the names of a generation's slices."""
    chips = [2**power for power in range(2, chip.max_chips.bit_length())]
    return [count * chip.units for count in ([1] if chip.name in SINGLE_CHIP else []) + chips]


def _shape(chips: int, dimensions: int) -> tuple[int, ...]:
    """Return powers of two as equal as can be, ascending; four chips, those of one host, always lie in a plane."""
    power = chips.bit_length() - 1
    if dimensions == 3 and chips == 4:
        return (2, 2, 1)
    low, more = divmod(power, dimensions)
    return tuple(2**low for _ in range(dimensions - more)) + tuple(2 ** (low + 1) for _ in range(more))


def _known(*chips: Chip) -> str:
    names = [f"{chip.name}-{size}" for chip in chips for size in _sizes(chip)]
    if len(chips) == 1:
        return ", ".join(names)
    return ", ".join(f"{chip.name}-{_sizes(chip)[0]} to {chip.name}-{_sizes(chip)[-1]}" for chip in chips)
