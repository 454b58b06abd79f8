"""The largest batch of which a training step fits on a TPU slice."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

from headjax.core.progress import Progress, silent
from headjax.mesh.mesh import batch_parts
from headjax.plan.plan import Plan, PlanConfig, plan
from headjax.plan.tpu import Slice

RESOLUTION = 8
"""The largest batch is searched to one part in this many."""

TYPICAL_ATTEMPTS = 4
"""Compilations that finding the largest batch usually takes."""


def largest_batch(
    config: PlanConfig, where: Slice, compiled: Callable[[PlanConfig, Slice], Plan] = plan, progress: Progress = silent
) -> Plan | None:
    """The plan with the largest batch that fits, to one part in `RESOLUTION`; None when no batch fits.

    From the config's batch on, halved until it fits, and doubled, the next to try is where a line through the memory of
    the last two that fit says that there is none left. Batches are multiples of the devices and parts that split them.

    Args:
        config: the run.
        where: the slice.
        compiled: makes a plan.
        progress: shows the advance.
    """
    mesh = config.mesh.build(where.devices())
    unit = config.accumulate * batch_parts(mesh)
    fitting: list[Plan] = []
    units, high = max(config.batch_size // unit, 1), None
    with progress("largest batch", TYPICAL_ATTEMPTS, "compilations or so") as bar:
        for attempt in itertools.count(1):
            tried = compiled(dataclasses.replace(config, batch_size=units * unit), where)
            bar(min(attempt, TYPICAL_ATTEMPTS), {"batch": tried.batch_size, "fits": float(tried.fits)})
            if tried.fits:
                fitting.append(tried)
            else:
                high = units
            low = fitting[-1].batch_size // unit if fitting else 0
            if high is not None and high - low <= max(low // RESOLUTION, 1):
                break
            units = _ahead(fitting, unit)
            if high is not None and not low < units < high:
                units = (low + high) // 2
    return fitting[-1] if fitting else None


def _ahead(fitting: list[Plan], unit: int) -> int:
    """A number of units that may be the last to fit, at least one part in `RESOLUTION` above those that do."""
    if not fitting:
        return 0
    last = fitting[-1]
    low = last.batch_size // unit
    if len(fitting) == 1:
        return 2 * low
    before = fitting[-2]
    slope = (last.peak_bytes_per_device - before.peak_bytes_per_device) / (last.batch_size - before.batch_size)
    left = last.hbm_bytes_per_device - last.peak_bytes_per_device
    more = int(left / slope / unit) if slope > 0 else low
    return low + max(more, low // RESOLUTION, 1)
