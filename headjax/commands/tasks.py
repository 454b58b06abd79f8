"""`headjax tasks`."""

from __future__ import annotations

import dataclasses

from headjax.commands.options import CommandOptions, Result
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Options of `headjax tasks`."""


def run(options: Options, progress: Progress) -> Result:
    """Every task by name."""
    from headjax.evaluation.task_list import known_tasks

    found = known_tasks()
    columns = [Column(title) for title in ("Task", "Taken by", "Files", "Fields", "Metrics")]
    rows = [
        (
            one.name,
            ", ".join(name for name, taken in (("--task", one.evaluate), ("prepare", one.prepare)) if taken),
            one.needs,
            ", ".join(one.columns),
            ", ".join(one.metrics),
        )
        for one in found
    ]
    notes = (
        "NAME:FOLDER says where a task's files are; without it they are looked for under the folder HEADJAX_DATA.",
        "--task also takes a table (columns sentence or sentence1, maybe sentence2, and label or score), a text, a "
        "folder that prepare wrote, all:PATH and heldout:PATH.",
    )
    return Result({"tasks": [one._asdict() for one in found]}, [Table(columns, rows, notes=notes)])
