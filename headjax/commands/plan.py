"""`headjax plan`."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from headjax.commands.examples import ConfigOptions
from headjax.commands.options import Result, option
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
    scale: tuple[Size, ...] = option((), "other sizes to compare it with", "N,N,...")
    max_batch: bool = option(False, "also find the largest batch that fits")
    length: Size | None = option(None, "tokens of an example (default: the config's)")


def run(options: Options, progress: Progress) -> Result:
    """Compiles the training step for a TPU slice, on any machine."""
    import jax

    from headjax.plan.elsewhere import Elsewhere
    from headjax.plan.plan import check_plan, largest_batch, plan_config
    from headjax.plan.tpu import find_slice
    from headjax.training.config import load_config

    where = find_slice(options.topology)
    others = [where.resized(size) for size in options.scale]
    config = plan_config(load_config(options.config, options.overrides).to_dict(), options.length)
    # libtpu is asked for its compiler alone; a TPU that this machine may have is left to others.
    jax.config.update("jax_platforms", "cpu")
    slices = [where, *others]
    for place in slices:
        check_plan(config, place)
    with Elsewhere() as process:
        compiled = functools.partial(_compiled, process)
        with progress("compiling", len(slices), "slice") as bar:
            plans = []
            for done, place in enumerate(slices, 1):
                plans.append(compiled(config, place))
                bar(done, {})
        best = largest_batch(config, where, compiled, progress) if options.max_batch else None
    main, scaled = plans[0], plans[1:]
    data: dict[str, Any] = main.to_json()
    tables = [_slices(plans), _messages(plans), _hops(plans)]
    if scaled:
        data["scale"] = [other.to_json() for other in scaled]
    message = _verdict(main)
    if options.max_batch:
        data["max_batch"] = None if best is None else best.batch_size
        tables[0] = _slices([*plans, best] if best else plans)
        message += "; no batch fits" if best is None else f"; largest batch: {best.batch_size:,}"
    return Result(data, tables, message)


def _compiled(process: Elsewhere, config: PlanConfig, where: Slice) -> Plan:
    """The plan, made in another process, since not every program gets through the TPU's compiler."""
    from headjax.plan.elsewhere import Crashed
    from headjax.plan.plan import plan

    try:
        return process.call(plan, config, where)
    except Crashed as crash:
        raise HeadjaxError(
            f"{where.name}: the TPU's compiler crashed on the step with a batch of {config.batch_size} ({crash}); "
            "another compute.remat, compute.attention or batch_size may pass"
        ) from None


def _slices(plans: list[Plan]) -> Table:
    from headjax.plan.tpu import ASSUMPTIONS

    columns = (
        Column("Slice"),
        Column("Devices", numbers.count),
        Column("Batch", numbers.count),
        Column("Remat"),
        Column("Parts", numbers.count),
        Column("Fits"),
        Column("Peak memory", numbers.size),
        Column("of", numbers.size),
        Column("Work", numbers.flops),
        Column("Step, at best", numbers.duration),
        Column("bound by"),
        Column("MFU, at most", numbers.percent),
        Column("FLOP per byte", numbers.significant),
    )
    rows = [
        (
            each.topology,
            each.devices,
            each.batch_size,
            each.remat,
            each.accumulate,
            "yes" if each.fits else "no",
            each.peak_bytes_per_device,
            each.hbm_bytes_per_device,
            each.flops_per_device,
            None if each.estimate is None else each.estimate.step_seconds,
            "" if each.estimate is None else each.estimate.bound.replace("collectives", "messages"),
            None if each.estimate is None else each.estimate.mfu,
            None if each.estimate is None else each.estimate.operations_per_byte,
        )
        for each in plans
    ]
    return Table(columns, rows, title="One training step, per device", notes=ASSUMPTIONS)


def _messages(plans: list[Plan]) -> Table:
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


def _hops(plans: list[Plan]) -> Table:
    columns = (
        Column("Slice"),
        Column("Mesh axis"),
        Column("Order"),
        Column("Mean", numbers.significant),
        Column("Longest", numbers.count),
        Column("Messages a link", numbers.count),
    )
    rows = [
        (each.topology, axis, order, *hops)
        for each in plans
        for axis, both in each.hops.items()
        for order, hops in (("the mesh's", both.arranged), ("as listed", both.listed))
    ]
    note = (
        "Links from each device to the next on the axis, and from the last to the first, counted from the chips' "
        "coordinates; and the most messages on one link in one direction when all devices send at once."
    )
    return Table(columns, rows, title="Links between devices of an axis", notes=(note,))


def _verdict(plan: Plan) -> str:
    peak, there = numbers.size(plan.peak_bytes_per_device), numbers.size(plan.hbm_bytes_per_device)
    if plan.fits:
        return f"fits on {plan.topology}: {peak} of {there} per device"
    return f"does not fit on {plan.topology}: at least {peak} wanted, {there} there; more remat or accumulate may"
