"""`headjax plan`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headjax.commands.examples import ConfigOptions
from headjax.commands.options import option
from headjax.commands.results import ABSENT, Result, found, table_of
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Size
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.plan.elsewhere import Elsewhere
    from headjax.plan.plan import Plan, PlanConfig
    from headjax.plan.tpu import Slice


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ConfigOptions):
    """Options of `headjax plan`."""

    topology: str = option(help="TPU slice: v3-32, v5e-16, v3:4x4, or several: v5e-256x2", metavar="SLICE")
    max_batch: bool = option(False, "also find the largest batch that fits")
    length: Size | None = option(None, "tokens of an example (default: the config's)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(Result):
    """A training step on TPU slices.

    Attributes:
        plans: the plan, and that of the largest batch.
    """

    topology: str = found("name of the slice")
    devices: int = found()
    slices: int = found()
    batch_size: int = found("over all devices")
    length: int = found("tokens of an example")
    remat: str = found()
    accumulate: int = found()
    prng: str = found()
    fits: bool = found()
    peak_bytes_per_device: int = found()
    hbm_bytes_per_device: int = found()
    flops_per_device: float = found()
    collectives: Mapping[str, Any] = found("by kind: `count`, `bytes`")
    between_slices: Mapping[str, Any] = found("the same over the data-centre network")
    compile_seconds: float = found()
    estimate: Mapping[str, Any] | None = found("of the shortest step; null where it does not fit")
    max_batch: int | None = found("with `--max-batch`", default=ABSENT)
    plans: Sequence[Plan]

    def tables(self) -> Sequence[Table]:
        return [_slices(self.plans), _messages(self.plans[:1])]

    def message(self) -> str:
        peak, there = numbers.size(self.peak_bytes_per_device), numbers.size(self.hbm_bytes_per_device)
        verdict = f"fits on {self.topology}: {peak} of {there} per device"
        if not self.fits:
            more = "more remat or accumulate may"
            verdict = f"does not fit on {self.topology}: at least {peak} wanted, {there} there; {more}"
        if self.max_batch is ABSENT:
            return verdict
        return f"{verdict}; {'no batch fits' if not self.max_batch else f'largest batch: {self.max_batch:,}'}"


def run(options: Options, progress: Progress) -> Found:
    """Compile the training step for a TPU slice, on any machine."""
    import jax

    from headjax.plan.elsewhere import Elsewhere
    from headjax.plan.plan import check_plan, largest_batch, plan_config
    from headjax.plan.tpu import find_slice
    from headjax.training.config import load_config

    where = find_slice(options.topology)
    config = plan_config(load_config(options.config, options.overrides).to_dict(), options.length)
    # libtpu is asked for its compiler alone; a TPU that this machine may have is left to others.
    jax.config.update("jax_platforms", "cpu")
    check_plan(config, where)
    more: dict[str, Any] = {}
    with Elsewhere() as process:
        with progress("compiling", 1, "slice") as bar:
            plans = [_compiled(process, config, where)]
            bar(1, {})
        if options.max_batch:
            best = largest_batch(config, where, functools.partial(_compiled, process), progress)
            more["max_batch"] = None if best is None else best.batch_size
            plans += [] if best is None else [best]
    return Found(**plans[0].to_json(), **more, plans=plans)


def _compiled(process: Elsewhere, config: PlanConfig, where: Slice) -> Plan:
    """Return the plan, made in another process, since not every program gets through the TPU's compiler."""
    from headjax.plan.elsewhere import Crashed
    from headjax.plan.plan import plan

    try:
        return process.call(plan, config, where)
    except Crashed as crash:
        raise HeadjaxError(
            f"{where.name}: the TPU's compiler crashed on the step with a batch of {config.batch_size} ({crash}); "
            "another compute.remat, compute.attention or batch_size may pass"
        ) from None


def _row(plan: Plan) -> dict[str, Any]:
    """Return a plan with its sums and its estimate, as tables show it."""
    row = plan._asdict() | {"fits": "yes" if plan.fits else "no"}
    if plan.fits:
        row["messages"] = sum(entry.count for entry in plan.collectives.values())
        row["sent"] = sum(entry.bytes for entry in plan.collectives.values())
        row["between"] = sum(entry.bytes for entry in plan.between_slices.values())
    if plan.estimate is not None:
        bound = plan.estimate.bound.replace("collectives", "messages")
        row |= plan.estimate._asdict() | {"step_seconds": plan.estimate.step_seconds, "bound": bound}
        row |= {"mfu": plan.estimate.mfu, "operations_per_byte": plan.estimate.operations_per_byte}
    return row


def _slices(plans: Sequence[Plan]) -> Table:
    from headjax.plan.tpu import ASSUMPTIONS

    columns = {
        "topology": Column("Slice"),
        "devices": Column("Devices", numbers.count),
        "batch_size": Column("Batch", numbers.count),
        "remat": Column("Remat"),
        "accumulate": Column("Parts", numbers.count),
        "fits": Column("Fits"),
        "peak_bytes_per_device": Column("Peak memory", numbers.size),
        "hbm_bytes_per_device": Column("of", numbers.size),
        "flops_per_device": Column("FLOPs", numbers.flops),
        "step_seconds": Column("Step, at best", numbers.duration),
        "bound": Column("bound by"),
        "mfu": Column("MFU, at most", numbers.percent),
        "operations_per_byte": Column("FLOP per byte", numbers.significant),
    }
    return table_of(columns, list(map(_row, plans)), "One training step, per device", ASSUMPTIONS)


def _messages(plans: Sequence[Plan]) -> Table:
    columns = (
        Column("Slice"),
        Column("Network"),
        Column("Collective"),
        Column("Times", numbers.count),
        Column("Bytes", numbers.size),
    )
    rows = [
        (each.topology, network, kind, entry.count, entry.bytes)
        for each in plans
        for network, sent in (("within slices", each.collectives), ("between slices", each.between_slices))
        for kind, entry in sorted(sent.items())
    ]
    return Table(columns, rows, title="Messages in one step, per device")
