"""`headjax tasks`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from headjax.commands.options import CommandOptions
from headjax.commands.results import Result, found
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Options of `headjax tasks`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(Result):
    """The tasks."""

    tasks: Sequence[Any] = found("`name`, `needs`, `columns`, `metrics`, and whether `evaluate` and `prepare` take it")

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
    from headjax.evaluation.task_list import known_tasks

    return Found(tasks=known_tasks())
