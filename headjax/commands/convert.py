"""`headjax convert`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headjax.commands.inputs import REFITTING, Cost, start_if_named, tell_time
from headjax.commands.models import ChangedResult, finish, planned_exports
from headjax.commands.options import DIRECTORY, TASK, ChangingOptions, DirectoryKind, argument, option
from headjax.commands.outputs import record, table_of
from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Count, unknown_name
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.conversion.model import Conversion

TARGETS = ("collaborative", "deep", "fixed", "grouped", "latent")
"""Formulations by name, for which nothing has to be imported."""


CALIBRATING = Cost(2.25)
"""Cost of moments and of the choice among four candidates, without the decompositions."""


def _target(text: str) -> str:
    name = text.partition(":")[0]
    if name not in TARGETS:
        raise ValueError(unknown_name("formulation", name, TARGETS))
    return text


class Options(ChangingOptions):
    out: str = argument("OUT", "folder of the converted model", writes="new")
    to: str = option(
        help="collaborative:shared_dim=384, grouped:kv_heads=4, latent:rank=256, fixed:head_dim=128 or deep",
        metavar="TARGET",
        read=_target,
    )
    format: DirectoryKind | None = option(None, DIRECTORY)  # `--to` of the other commands
    task: str = option("", TASK, "TASK", reads="task")
    calibrate: Count | None = option(
        None,
        "calibrate: minimise errors on the inputs of N examples; 0 is all (default: none, the errors of the weights)",
    )
    reconstruct: bool = option(False, "then refit the output projections by least squares on the calibration examples")
    stacks: tuple[str, ...] = option((), "convert these stacks only: encoder,decoder,cross", "STACKS")
    layers: tuple[int, ...] = option((), "convert these layers only, such as 0,3,4", "LAYERS")
    seed: int = option(0, "seed of the calibration examples and of random starts")


class Result(ChangedResult):
    conversion: Conversion = record("headjax.conversion.model.Conversion", "divergence", error_per_layer="errors")

    def tables(self) -> Sequence[Table]:
        columns = {"place": Column("Layer")}
        for name in ("relative_error", "logit_error"):
            if any(getattr(error, name) is not None for error in self.conversion.errors):
                columns[name] = Column(name.replace("_", " ").capitalize(), numbers.significant)
        rows = [{**error._asdict(), "place": f"{error.stack}/{error.layer}"} for error in self.conversion.errors]
        notes = []
        if tried := sorted(self.conversion.divergence.items(), key=lambda pair: pair[1]):
            said = ", ".join(f"{name} {apart:.3g}" for name, apart in tried)
            notes.append(f"Divergence from the original on held-out calibration examples; the first was taken: {said}.")
        return [table_of(columns, rows, notes=notes), *self.comparison]


def run(options: Options, progress: Progress) -> Result:
    """Writes the model in another formulation; with a task, also its metrics before and after."""
    from headjax.conversion import convert
    from headjax.conversion.model import planned

    if options.calibrate is not None and not options.task:
        raise HeadjaxError("--task: needed to calibrate on")
    for name in ("calibration", "reconstruct"):
        if getattr(options, name) and options.calibrate is None:
            raise HeadjaxError(f"--{name}: needs --calibrate N")
    model, examples = start_if_named(options)
    where: dict[str, Any] = {"stacks": options.stacks or None, "layers": options.layers or None}
    exports = planned_exports(options, model, planned(model.config, options.to, **where))
    calibrated = examples is not None and options.calibrate is not None
    batches = examples.calibrating(options.seed) if examples is not None and calibrated else None
    chosen = [CALIBRATING, *[REFITTING] * options.reconstruct] if calibrated else []
    tell_time(model, examples, batches=batches or (), chosen=chosen, judged=2.0)
    more: dict[str, Any] = {"reconstruct": options.reconstruct, "seed": options.seed, "progress": progress}
    conversion = convert(model, options.to, batches=batches, **where, **more)
    ending = finish(model, conversion.model, options, progress, examples, selection=calibrated)
    return Result(conversion=conversion, exports=exports, **ending)
