"""What a benchmark measured."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from headjax.report.tables import Table
from headjax.version import __version__


class BenchResult(NamedTuple):
    """A measurement beside a peer's, both taken in one run on one machine.

    Attributes:
        ours: what headjax measured, by quantity, with units in the names.
        peer: what the peer measured.
        ratio: ours over the peer's in the headline quantity; below 1 is better.
        tables: the same for people.
    """

    ours: Mapping[str, Any]
    peer: Mapping[str, Any]
    ratio: float
    tables: tuple[Table, ...]

    def to_json(self) -> dict[str, Any]:
        """The result as JSON data, with the machine it was measured on."""
        return {"ours": dict(self.ours), "peer": dict(self.peer), "ratio": self.ratio, "machine": machine()}


def machine() -> dict[str, Any]:
    """Where a measurement was taken."""
    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "headjax": __version__,
    }
