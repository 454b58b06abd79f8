"""`headjax train`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from headjax.commands.config_fields import ConfigFields, rows_of
from headjax.commands.options import ConfigOptions, option
from headjax.commands.outputs import CommandResult, key
from headjax.core import numbers
from headjax.core.errors import DIVERGED, INTERRUPTED
from headjax.core.fields import Positive
from headjax.core.progress import Progress
from headjax.report.tables import Table

if TYPE_CHECKING:
    from headjax.training.loop import TrainResult

MAX_TIME = "time limit, after which a checkpoint ends the run; the same command continues it"
"""Help of `--max-time` where it ends a run."""


def _steps_to_trace(text: str) -> range:
    """Read a range such as `10:15`, of which both ends belong to it."""
    found = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"expected FIRST:LAST such as 10:15, got {text!r}")
    return range(int(found[1]), int(found[2]) + 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ConfigOptions):
    """Options of `headjax train`."""

    workdir: str = option(help="folder of checkpoints, metrics and the model", metavar="D", writes="folder")
    max_time: Positive | None = option(None, MAX_TIME, "MINUTES")
    distributed: str | None = option(None, "one of several processes: auto (Cloud TPU, GKE), or HOST:PORT,N,I", "WHO")
    help_config: bool = option(False, "list every field of a config", alone=True)
    profile_steps: range = option(
        range(0), "write a trace of these steps, for xprof", "FIRST:LAST", read=_steps_to_trace, shown="none"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(CommandResult):
    """A training run."""

    title = "Training"

    steps: int = key("that have been trained")
    finished: bool = key()
    diverged: bool = key()
    metrics: Mapping[str, float] = key("on the validation examples")
    kept_step: int = key("step whose weights the model has")
    tokens_per_second: float = key()
    parameters: int = key("", "parameters", numbers.count)
    classes: Sequence[str] = key("class names of a classifier", "classes", lambda names: ", ".join(names[:8]))
    model: str | None = key("its folder; null where the run has not finished", said="model")
    wanted: int
    reason: str | None
    notes: Sequence[str] = ()

    @classmethod
    def of(cls, result: TrainResult, model: object, classes: Sequence[str], wanted: int, **more: Any) -> Self:
        """Return the result of a run whose model lies in a folder."""
        return cls(
            steps=result.steps,
            finished=result.finished,
            diverged=result.diverged is not None,
            metrics=dict(result.metrics),
            kept_step=result.kept_step,
            tokens_per_second=result.tokens_per_second,
            parameters=result.model.num_parameters,
            classes=list(classes),
            model=None if result.path is None else str(model),
            wanted=wanted,
            reason=result.diverged,
            notes=result.notes,
            **more,
        )

    def tables(self) -> Sequence[Table]:
        rows = [("steps", f"{self.steps:,} of {self.wanted:,}")]
        rows += [(name, numbers.significant(value)) for name, value in self.metrics.items()]
        rows.append(("tokens per second", numbers.count(self.tokens_per_second)))
        if self.kept_step != self.steps:
            rows.append(("weights kept", f"after step {self.kept_step:,}"))
        return [dataclasses.replace(self.summary(*rows), notes=tuple(self.notes))]

    def message(self) -> str:
        if self.diverged:
            return f"diverged: {self.reason}"
        if not self.finished:
            return f"interrupted after step {self.steps}; the same command continues from there"
        return super().message()

    @property
    def exit_code(self) -> int:
        return DIVERGED if self.diverged else 0 if self.finished else INTERRUPTED


def run(options: Options, progress: Progress) -> Run | ConfigFields:
    """Trains, evaluates, checkpoints and resumes by itself."""
    from headjax.training.config import TrainConfig, train_config

    if options.help_config:
        return ConfigFields(fields=rows_of(TrainConfig))
    if options.distributed is not None:
        from headjax.mesh.distributed import initialize

        initialize(options.distributed)

    from headjax.models.tasks.classification import class_names
    from headjax.training.config_file import load_config
    from headjax.training.loop import train

    config = train_config(load_config(options.config, options.overrides))
    seconds = None if options.max_time is None else 60.0 * options.max_time
    result = train(config, options.workdir, progress=progress, profiled=options.profile_steps, max_seconds=seconds)
    names = class_names(result.model.config)
    return Run.of(result, result.path, names, config.steps)
