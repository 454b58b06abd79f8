"""The tasks by name: the files and columns that each needs, and its metrics, from the tables that load them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headjax.data import metrics as formulas
from headjax.data.forms.questions import QuestionForm, QuestionWindows
from headjax.data.task import MeasureSpec
from headjax.data.task_spec import TaskSpec
from headjax.data.tasks import TASKS
from headjax.evaluation.specs import NAMED
from headjax.evaluation.task import MEASURES


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
    return [_known(name) for name in sorted({*NAMED, *TASKS})]


def _known(name: str) -> KnownTask:
    spec = TASKS.get(name)
    measured = _measured(spec)
    measure = None if measured is None else MEASURES[measured.measure](**measured.arguments)
    headline = "" if measure is None else measure.headline
    metrics = tuple(getattr(measure, "chosen", ())) or ((headline,) if headline else ())
    formula = getattr(formulas, headline, None) or (None if measure is None else type(measure))
    return KnownTask(
        name=name,
        evaluate=name in NAMED,
        prepare=spec is not None,
        needs=_needs(name, spec),
        columns=() if spec is None else tuple(spec.form.wanted),
        metrics=metrics,
        source="" if formula is None else (formula.__doc__ or "").strip().splitlines()[0],
    )


def _measured(spec: TaskSpec | None) -> MeasureSpec | None:
    if spec is None:
        return None
    nothing = QuestionWindows((), np.zeros(0, np.int64), 1, lambda record, length: {}, ())
    held = nothing if isinstance(spec.form, QuestionForm) else ()
    return spec.form.measured(spec.metrics, {}, held)


def _needs(name: str, spec: TaskSpec | None) -> str:
    if spec is None:
        return (NAMED[name].__doc__ or "").strip().splitlines()[0].removeprefix("Read ").rstrip(".")
    found = [spec.files] if spec.files else []
    if spec.layouts:
        layouts = (" and ".join(filter(None, layout[:2])) for layout in spec.layouts)
        found = [f"{spec.folders[0]}: {' or '.join(layouts)}"]
    for source in spec.sources:
        found.append(f"TFDS {source.name} ({source.splits.get('train', '-')} / {source.splits['validation']})")
    return "; ".join(found) or "a table or TFRecords of its columns"
