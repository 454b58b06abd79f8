"""What a benchmark measured, and where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headjax.bench.machine import load, machine, machine_table
from headjax.core.progress import Progress, silent
from headjax.report.tables import Table


class BenchResult(NamedTuple):
    """A measurement beside a peer's, both taken in one run on one machine.

    Attributes:
        ours: what headjax measured, by quantity, with units in the names.
        peer: what the peer measured.
        ratio: ours over the peer's in the headline quantity; below 1 is better.
        tables: the same for people.
        peers: distributions that the peer is made of, whose versions are reported.
    """

    ours: Mapping[str, Any]
    peer: Mapping[str, Any]
    ratio: float
    tables: tuple[Table, ...]
    peers: tuple[str, ...] = ()


class Measured(NamedTuple):
    """A benchmark's result and the machine it was taken on.

    Attributes:
        result: the result.
        machine: see `headjax.bench.machine.machine`.
    """

    result: BenchResult
    machine: Mapping[str, Any]

    @property
    def tables(self) -> tuple[Table, ...]:
        """The result's tables, and the machine's."""
        return (*self.result.tables, machine_table(self.machine))

    def to_json(self) -> dict[str, Any]:
        """Both as JSON data."""
        ours, peer, ratio = dict(self.result.ours), dict(self.result.peer), self.result.ratio
        return {"ours": ours, "peer": peer, "ratio": ratio, "machine": dict(self.machine)}


def measure(run: Callable[[Progress], BenchResult], progress: Progress = silent) -> Measured:
    """Runs a benchmark; the load is read before and after it."""
    before = load()
    result = run(progress)
    return Measured(result, machine(peers=result.peers, load_before=before))
