"""`headjax train`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from headjax.commands.examples import ConfigOptions
from headjax.commands.options import Result, option
from headjax.core.errors import DIVERGED, INTERRUPTED
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.training.loop import TrainResult


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ConfigOptions):
    """Options of `headjax train`."""

    workdir: str = option(help="folder of checkpoints, metrics and the model", metavar="D", writes="folder")
    distributed: str | None = option(None, "one of several processes: auto (Cloud TPU, GKE), or HOST:PORT,N,I", "WHO")
    profile_steps: str | None = option(
        None, "write a trace of these steps, for xprof", "FIRST:LAST", also=("--profile_steps",)
    )


def run(options: Options, progress: Progress) -> Result:
    """Trains, evaluates, checkpoints and resumes by itself."""
    from headjax.training.recording import ProfiledSteps

    profiled = None if options.profile_steps is None else ProfiledSteps.parse(options.profile_steps)
    if options.distributed is not None:
        from headjax.mesh.distributed import initialize

        initialize(options.distributed)

    from headjax.models.tasks.classification import class_names
    from headjax.training.config import load_config, train_config
    from headjax.training.loop import train

    config = train_config(load_config(options.config, options.overrides))
    result = train(config, options.workdir, progress=progress, profiled=profiled)
    classes = class_names(result.model.config)
    data = {
        "steps": result.steps,
        "finished": result.finished,
        "extended_from": result.extended_from,
        "diverged": result.diverged is not None,
        "metrics": dict(result.metrics),
        "kept_step": result.kept_step,
        "tokens_per_second": result.tokens_per_second,
        "model": None if result.path is None else str(result.path),
        "parameters": result.model.num_parameters,
        "classes": list(classes),
    }
    rows = [("steps", f"{result.steps:,} of {config.steps:,}"), ("parameters", f"{result.model.num_parameters:,}")]
    if classes:
        rows.append(("classes", ", ".join(f"{number} {name}" for number, name in enumerate(classes[:8]))))
    rows += [(name, f"{value:,.4g}") for name, value in result.metrics.items()]
    rows.append(("tokens per second", f"{result.tokens_per_second:,.0f}"))
    if result.kept_step != result.steps:
        rows.append(("weights kept", f"after step {result.kept_step:,}"))
    ended = ending(result)
    notes = [] if result.extended_from is None else [f"extended from {result.extended_from} to {config.steps} steps"]
    table = Table((Column("Training"), Column("")), rows)
    return Result(data, [table], "; ".join([*notes, ended.message or f"model: {result.path}"]), ended.exit_code)


class Ending(NamedTuple):
    """The end of a run for the command line.

    Attributes:
        message: the reason for which the run did not finish; empty where it did.
        exit_code: 0, `DIVERGED` or `INTERRUPTED`.
    """

    message: str
    exit_code: int


def ending(result: TrainResult) -> Ending:
    """Return how a run ended."""
    if result.diverged is not None:
        return Ending(f"diverged: {result.diverged}", DIVERGED)
    if not result.finished:
        return Ending(f"interrupted after step {result.steps}; the same command goes on from there", INTERRUPTED)
    return Ending("", 0)
