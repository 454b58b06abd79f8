"""The papers' tasks, ready to be prepared: what they hold, where TFDS has them, and which local files do as well."""

from __future__ import annotations

from collections.abc import Mapping

from headjax.core.errors import DataError
from headjax.core.serialize import unknown_name
from headjax.data.tasks import glue, image_tasks, text_tasks
from headjax.data.tasks.spec import TaskSpec

TASKS: Mapping[str, TaskSpec] = {spec.name: spec for family in (text_tasks, glue, image_tasks) for spec in family.TASKS}
"""The tasks by name."""


def find_task(name: str) -> TaskSpec:
    """A task by name.

    Raises:
        DataError: there is none of this name.
    """
    if name not in TASKS:
        raise DataError(f"task: {unknown_name('task', name, TASKS)}")
    return TASKS[name]


def metrics_of(name: str) -> tuple[str, ...]:
    """Return a task's own metrics, the headline first; none of a task that is not known or has those of its form."""
    return TASKS[name].metrics if name in TASKS else ()


__all__ = ["TASKS", "TaskSpec", "find_task", "metrics_of"]
