"""`headjax plan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headjax.commands.options import ConfigOptions, option
from headjax.commands.outputs import CommandResult, record, table_of
from headjax.core import numbers
from headjax.core.fields import Size
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.plan.plan import Plan


class Options(ConfigOptions):
    topology: str = option(help="TPU slice: v3-32, v5e-16, v3:4x4, or several: v5e-256x2", metavar="SLICE")
    length: Size | None = option(None, "tokens of an example (default: the config's)")


class Result(CommandResult):
    plan: Plan = record("headjax.plan.plan.Plan")

    def tables(self) -> Sequence[Table]:
        columns = {
            "topology": Column("Slice"),
            "devices": Column("Devices", numbers.count),
            "batch_size": Column("Batch", numbers.count),
            "remat": Column("Remat"),
            "accumulate": Column("Parts", numbers.count),
            "peak_bytes_per_device": Column("Peak memory", numbers.size),
            "hbm_bytes_per_device": Column("of", numbers.size),
            "flops_per_device": Column("FLOPs", numbers.flops),
        }
        sent = [(kind, each.count, each.bytes) for kind, each in sorted(self.plan.collectives.items())]
        messages = (Column("Collective"), Column("Times", numbers.count), Column("Bytes", numbers.size))
        return [
            table_of(columns, [self.plan], "One training step, per device"),
            Table(messages, sent, title="Messages in one step, per device"),
        ]

    def message(self) -> str:
        plan = self.plan
        peak, there = numbers.size(plan.peak_bytes_per_device), numbers.size(plan.hbm_bytes_per_device)
        if plan.fits:
            return f"fits on {plan.topology}: {peak} of {there} per device"
        more = "more remat or accumulate may"
        return f"does not fit on {plan.topology}: at least {peak} wanted, {there} there; {more}"


def run(options: Options, progress: Progress) -> Result:
    """Compile the training step for a TPU slice, on any machine."""
    import jax

    from headjax.plan.plan import plan, plan_config
    from headjax.plan.tpu import find_slice
    from headjax.training.config_file import load_config

    where = find_slice(options.topology)
    config = plan_config(load_config(options.config, options.overrides).to_dict(), options.length)
    # libtpu is asked for its compiler alone; a TPU that this machine may have is left to others.
    jax.config.update("jax_platforms", "cpu")
    with progress("compiling", 1, "step") as bar:
        planned = plan(config, where)
        bar(1, {})
    return Result(plan=planned)
