"""`headjax tasks`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headjax.commands.options import CommandOptions
from headjax.commands.results import Result, found
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.data.task_spec import TaskSpec
    from headjax.evaluation.measures import Measure
    from headjax.evaluation.task import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Options of `headjax tasks`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(Result):
    """The tasks."""

    tasks: Sequence[KnownTask] = found(
        "`name`, `needs`, `columns`, `metrics`, and whether `evaluate` and `prepare` take it"
    )

    def tables(self) -> Sequence[Table]:
        columns = [Column(title) for title in ("Task", "Taken by", "Files", "Fields", "Metrics")]
        rows = [
            (
                one.name,
                ", ".join(name for name, taken in (("--task", one.evaluate), ("prepare", one.prepare)) if taken),
                one.needs,
                ", ".join(one.columns),
                ", ".join(one.metrics),
            )
            for one in self.tasks
        ]
        notes = (
            "NAME:FOLDER says where a task's files are; without it they are looked for under the folder HEADJAX_DATA.",
            "--task also takes a table (columns sentence or sentence1, maybe sentence2, and label or score), a text, a "
            "folder that prepare wrote, all:PATH and heldout:PATH.",
        )
        return [Table(columns, rows, notes=notes)]


def run(options: Options, progress: Progress) -> Found:
    """Every task by name."""
    return Found(tasks=known_tasks())


class KnownTask(NamedTuple):
    """A task by name.

    Attributes:
        name: its name.
        evaluate: whether `--task` takes it.
        prepare: whether `headjax prepare` takes it.
        needs: the files that it is read from.
        columns: the columns or fields of a row.
        metrics: names of its metrics, the headline first.
        source: the formula of the headline, or the measure that defines it.
    """

    name: str
    evaluate: bool
    prepare: bool
    needs: str
    columns: tuple[str, ...]
    metrics: tuple[str, ...]
    source: str


def known_tasks() -> list[KnownTask]:
    """Return every task that `--task` or `headjax prepare` takes by name, in the order of their names."""
    from headjax.data.tasks import TASKS
    from headjax.evaluation.specs import NAMED

    return [_known(name, TASKS.get(name), NAMED.get(name)) for name in sorted({*NAMED, *TASKS})]


def _known(name: str, spec: TaskSpec | None, loader: Callable[..., Task] | None) -> KnownTask:
    from headjax.data import metrics as formulas

    measure = None if spec is None else _measure(spec)
    headline = "" if measure is None else measure.headline
    metrics = tuple(getattr(measure, "chosen", ())) or ((headline,) if headline else ())
    formula = getattr(formulas, headline, None) or (None if measure is None else type(measure))
    return KnownTask(
        name=name,
        evaluate=loader is not None,
        prepare=spec is not None,
        needs=_first_line(loader).removeprefix("Read ").rstrip(".") if spec is None else _needs(spec),
        columns=() if spec is None else tuple(spec.form.wanted),
        metrics=metrics,
        source="" if formula is None else _first_line(formula),
    )


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]


def _measure(spec: TaskSpec) -> Measure | None:
    """Return the measure of a task, without any examples."""
    import numpy as np

    from headjax.data.forms.questions import QuestionForm, QuestionWindows
    from headjax.evaluation.task import MEASURES

    nothing = QuestionWindows((), np.zeros(0, np.int64), 1, lambda record, length: {}, ())
    measured = spec.form.measured(spec.metrics, {}, nothing if isinstance(spec.form, QuestionForm) else ())
    return None if measured is None else MEASURES[measured.measure](**measured.arguments)


def _needs(spec: TaskSpec) -> str:
    """Return the files that a task is read from."""
    found = [spec.files] if spec.files else []
    if spec.layouts:
        layouts = (" and ".join(filter(None, layout[:2])) for layout in spec.layouts)
        found = [f"{spec.folders[0]}: {' or '.join(layouts)}"]
    for source in spec.sources:
        found.append(f"TFDS {source.name} ({source.splits.get('train', '-')} / {source.splits['validation']})")
    return "; ".join(found) or "a table or TFRecords of its columns"
