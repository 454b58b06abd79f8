"""The shortest time a training step can take on a TPU slice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headjax.plan.collectives import Collective
from headjax.plan.tpu import Chip

ASSUMPTIONS = (
    "No step is faster than the slowest of three, which overlap perfectly: arithmetic at the chip's peak in bfloat16, "
    "memory traffic at its bandwidth, messages at that of all its links.",
    "Arithmetic: matrix products, the backward pass twice the forward, and one forward more where all is recomputed "
    "(remat full; what remat dots recomputes is left out), spread evenly over the devices.",
    "Memory: parameters, optimizer state and batch read once, new state written once, temporaries written and read "
    "once. Messages: all-reduce sends its bytes twice, the others once.",
    "Left out: element-wise work, and dropout's random bits, which are many with prng threefry2x32. MFU counts no "
    "recomputation. Real steps take longer.",
)
"""What the estimate rests on."""


class Roofline(NamedTuple):
    """Seconds of one step if one resource were all that limited it, and what follows.

    Attributes:
        compute_seconds: arithmetic.
        memory_seconds: traffic to and from HBM.
        collective_seconds: messages between devices.
        step_seconds: the largest of them.
        mfu: the most that model FLOPs utilisation can be: the share of the peak that useful operations take.
        operations_per_byte: arithmetic intensity, operations per byte of memory traffic.
    """

    compute_seconds: float
    memory_seconds: float
    collective_seconds: float
    step_seconds: float
    mfu: float
    operations_per_byte: float

    @property
    def bound(self) -> str:
        """What limits the step: `compute`, `memory` or `collectives`."""
        seconds = {
            "compute": self.compute_seconds,
            "memory": self.memory_seconds,
            "collectives": self.collective_seconds,
        }
        return max(seconds, key=lambda name: seconds[name])


def roofline(
    chip: Chip, *, flops: float, recomputed: float, traffic: float, collectives: Mapping[str, Collective]
) -> Roofline:
    """The estimate for one device's part of a step, under `ASSUMPTIONS`.

    Args:
        chip: the generation, whose chips' devices share evenly what a chip has.
        flops: useful operations.
        recomputed: operations done twice.
        traffic: bytes to and from memory.
        collectives: what the compiled step sends.
    """
    peak = chip.peak_flops / chip.devices
    sent = sum(entry.bytes * (2 if kind == "all-reduce" else 1) for kind, entry in collectives.items())
    compute = (flops + recomputed) / peak
    memory = traffic * chip.devices / chip.hbm_bandwidth
    messages = sent * chip.devices / chip.link_bandwidth
    step = max(compute, memory, messages)
    return Roofline(compute, memory, messages, step, flops / peak / step, (flops + recomputed) / traffic)
