"""`headjax plan`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(Result):
    """A training step on TPU slices.

    Attributes:
        tried: plans and failures by slice; the largest batch is among the plans.
        asked: whether the largest batch was asked for.
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
    scale: Sequence[Mapping[str, Any]] = found(
        "with `--scale`: the same by size, or `topology`, `devices` and `error`", default=ABSENT
    )
    max_batch: int | None = found("with `--max-batch`", default=ABSENT)
    tried: Sequence[Plan | Refused]
    largest: Plan | None

    def tables(self) -> Sequence[Table]:
        plans = [each for each in self.tried if not isinstance(each, Refused)]
        steps = [_slices([*plans, *([] if self.largest is None else [self.largest])]), _messages(plans)]
        return steps if self.scale is ABSENT else [_scale(self.tried), *steps]

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
    from headjax.plan.plan import Plan, largest_batch, plan_config
    from headjax.plan.tpu import find_slice
    from headjax.training.config import load_config

    where, others = _slices_of(options)
    config = plan_config(load_config(options.config, options.overrides).to_dict(), options.length)
    # libtpu is asked for its compiler alone; a TPU that this machine may have is left to others.
    jax.config.update("jax_platforms", "cpu")
    tried = _each(config, where, others, progress)
    plans = [each for each in tried.values() if isinstance(each, Plan)]
    main = tried[where.name] if where else next(iter([*plans, *tried.values()]))
    if isinstance(main, Refused):
        raise HeadjaxError(main.reason)
    best = None
    more: dict[str, Any] = {}
    if options.max_batch:
        with Elsewhere() as process:
            best = largest_batch(config, find_slice(main.topology), functools.partial(_compiled, process), progress)
        more["max_batch"] = None if best is None else best.batch_size
    if others:
        more["scale"] = [tried[other.name].to_json() for other in others]
    return Found(**main.to_json(), **more, tried=list(tried.values()), largest=best)


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
    made: dict[str, Plan | Refused] = {}

    def refused(where: Slice, error: HeadjaxError) -> Refused:
        if required is not None and where.name == required.name:
            raise error
        return Refused(where, str(error))

    for name, where in slices.items():
        try:
            check_plan(config, where)
        except HeadjaxError as error:
            made[name] = refused(where, error)
    with contextlib.ExitStack() as processes, progress("compiling", len(slices), "slice") as bar:
        process = None
        for done, (name, where) in enumerate(slices.items(), 1):
            if name not in made:
                process = process or processes.enter_context(Elsewhere())
                try:
                    made[name] = _compiled(process, config, where)
                except HeadjaxError as error:
                    made[name] = refused(where, error)
                    process = None  # the compiler may have ended it
            bar(done, {})
    return {name: made[name] for name in slices}


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


def _scale(tried: Sequence[Plan | Refused]) -> Table:
    columns = {
        "topology": Column("Slice"),
        "devices": Column("Devices", numbers.tick(numbers.count)),
        "fits": Column("Fits"),
        "peak_bytes_per_device": Column("Peak memory", numbers.size),
        "hbm_bytes_per_device": Column("of", numbers.size),
        "messages": Column("Messages", numbers.count),
        "sent": Column("Sent", numbers.size),
        "between": Column("Between slices", numbers.size),
        "step_seconds": Column("Step, at best", numbers.duration),
        "error": Column("Failure"),
    }
    rows = [each.to_json() if isinstance(each, Refused) else _row(each) for each in tried]
    note = "Per device and training step, with the same batch over all devices of a size. Messages by kind stand below."
    return table_of(columns, rows, "By number of devices", [note])


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
