"""`headjax plan`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

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


_SIZE = re.compile(r"(?P<low>\d{1,9})(?:\.\.(?P<high>\d{1,9}))?|v\d\S*", re.ASCII)
"""A word of `--scale`: a number in slice names, a range of them, or a slice."""


def _words(text: str) -> tuple[str, ...]:
    words = tuple(text.split(","))
    if not all(map(_SIZE.fullmatch, words)):
        raise ValueError(
            f"expected numbers such as 32,128, a range such as 8..512 or slices such as v5e-8,v5e-32, got {text!r}"
        )
    return words


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ConfigOptions):
    """Options of `headjax plan`."""

    topology: str = option("", "TPU slice: v3-32, v5e-16, v3:4x4, or several: v5e-256x2", "SLICE")
    scale: tuple[str, ...] = option(
        (), "other sizes: numbers in slice names, or slices, also without --topology", "N,N|N..N|SLICE,...", read=_words
    )
    max_batch: bool = option(False, "also find the largest batch that fits")
    length: Size | None = option(None, "tokens of an example (default: the config's)")


class Refused(NamedTuple):
    """A slice that the step cannot be planned for.

    Attributes:
        where: the slice.
        reason: one line.
    """

    where: Slice
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {"topology": self.where.name, "devices": self.where.num_devices, "error": self.reason}


def run(options: Options, progress: Progress) -> Result:
    """Compile the training step for a TPU slice, on any machine."""
    import jax

    from headjax.plan.elsewhere import Elsewhere
    from headjax.plan.plan import Plan, largest_batch, plan_config
    from headjax.plan.tpu import find_slice
    from headjax.training.config import load_config

    where, others = _slices_of(options)
    config = plan_config(load_config(options.config, options.overrides).to_dict(), options.length)
    # libtpu is asked for its compiler alone; a TPU that this machine may have is left to others.
    jax.config.update("jax_platforms", "cpu")
    found = _each(config, where, others, progress)
    plans = [each for each in found.values() if isinstance(each, Plan)]
    main = found[where.name] if where else next(iter([*plans, *found.values()]))
    if isinstance(main, Refused):
        raise HeadjaxError(main.reason)
    best = None
    if options.max_batch:
        with Elsewhere() as process:
            best = largest_batch(config, find_slice(main.topology), functools.partial(_compiled, process), progress)
    data: dict[str, Any] = main.to_json()
    tables = [_slices([*plans, best] if best else plans), _messages(plans)]
    if others:
        data["scale"] = [found[other.name].to_json() for other in others]
        tables.insert(0, _scale(list(found.values())))
    message = _verdict(main)
    if options.max_batch:
        data["max_batch"] = None if best is None else best.batch_size
        message += "; no batch fits" if best is None else f"; largest batch: {best.batch_size:,}"
    return Result(data, tables, message)


def _slices_of(options: Options) -> tuple[Slice | None, list[Slice]]:
    """Return the slice of `--topology`, and those of `--scale`."""
    from headjax.plan.tpu import find_slice

    named = [word for word in options.scale if word.startswith("v")]
    if not options.topology and not named:
        raise HeadjaxError("--topology: give a TPU slice such as v5e-16, or several with --scale v5e-8,v5e-32")
    where = find_slice(options.topology) if options.topology else None
    generation = where or find_slice(named[0])
    others: list[Slice] = []
    for word in options.scale:
        size = _SIZE.fullmatch(word)
        if size is None or size["low"] is None:
            others.append(find_slice(word))
        elif size["high"] is None:
            others.append(generation.resized(int(size["low"])))
        else:
            others += generation.between(int(size["low"]), int(size["high"]))
    return where, others


def _each(
    config: PlanConfig, required: Slice | None, others: list[Slice], progress: Progress
) -> dict[str, Plan | Refused]:
    """Plan for every slice, by name. All are checked before the first is compiled; a slice that fails stops no other.

    Raises:
        HeadjaxError: the required slice fails.
    """
    from headjax.plan.elsewhere import Elsewhere
    from headjax.plan.plan import check_plan

    slices = {where.name: where for where in ([required] if required else []) + others}
    found: dict[str, Plan | Refused] = {}

    def refused(where: Slice, error: HeadjaxError) -> Refused:
        if required is not None and where.name == required.name:
            raise error
        return Refused(where, str(error))

    for name, where in slices.items():
        try:
            check_plan(config, where)
        except HeadjaxError as error:
            found[name] = refused(where, error)
    with contextlib.ExitStack() as processes, progress("compiling", len(slices), "slice") as bar:
        process = None
        for done, (name, where) in enumerate(slices.items(), 1):
            if name not in found:
                process = process or processes.enter_context(Elsewhere())
                try:
                    found[name] = _compiled(process, config, where)
                except HeadjaxError as error:
                    found[name] = refused(where, error)
                    process = None  # the compiler may have ended it
            bar(done, {})
    return {name: found[name] for name in slices}


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


def _scale(found: list[Plan | Refused]) -> Table:
    columns = (
        Column("Slice"),
        Column("Devices", numbers.tick(numbers.count)),
        Column("Fits"),
        Column("Peak memory", numbers.size),
        Column("of", numbers.size),
        Column("Messages", numbers.count),
        Column("Sent", numbers.size),
        Column("Between slices", numbers.size),
        Column("Step, at best", numbers.duration),
        Column("Failure"),
    )
    rows: list[tuple[Any, ...]] = []
    for each in found:
        if isinstance(each, Refused):
            rows.append((each.where.name, each.where.num_devices, "", *(None,) * 6, each.reason))
            continue
        sent, between = list(each.collectives.values()), list(each.between_slices.values())
        rows.append(
            (
                each.topology,
                each.devices,
                "yes" if each.fits else "no",
                each.peak_bytes_per_device,
                each.hbm_bytes_per_device,
                sum(entry.count for entry in sent) if each.fits else None,
                sum(entry.bytes for entry in sent) if each.fits else None,
                sum(entry.bytes for entry in between) if each.fits else None,
                None if each.estimate is None else each.estimate.step_seconds,
                "",
            )
        )
    note = "Per device and training step, with the same batch over all devices of a size. Messages by kind stand below."
    return Table(columns, rows, title="By number of devices", notes=(note,))


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


def _verdict(plan: Plan) -> str:
    peak, there = numbers.size(plan.peak_bytes_per_device), numbers.size(plan.hbm_bytes_per_device)
    if plan.fits:
        return f"fits on {plan.topology}: {peak} of {there} per device"
    return f"does not fit on {plan.topology}: at least {peak} wanted, {there} there; more remat or accumulate may"
