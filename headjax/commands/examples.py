"""The options that say which examples a command reads, by the policy of `headjax.evaluation.selection`."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from headjax.commands.command import add_task_arguments, not_negative, open_model_and_task
from headjax.core.errors import HeadjaxError

if TYPE_CHECKING:
    from headjax.evaluation.selection import Parts
    from headjax.evaluation.task import Task
    from headjax.models.config import Batch
    from headjax.models.model import Model


def add_examples_arguments(
    parser: argparse.ArgumentParser, *, required: bool = True, names: tuple[str, ...] = ("--selected",), usual: int = 0
) -> None:
    """Declare `--task`, how much of it to read, and which examples heads are chosen on.

    Args:
        parser: the command's.
        required: whether the command needs a task.
        names: names of the option for the number of selection examples.
        usual: that number where the user gives none; 0 is `--limit`, or 1024.
    """
    add_task_arguments(parser, required=required)
    parser.add_argument(
        "--select",
        default="",
        metavar="SPLIT|FILE",
        help="examples to choose heads on: train, validation, or another task or file (default train; a task with one "
        "split is divided in halves)",
    )
    parser.add_argument(
        *names,
        dest="selected",
        type=not_negative,
        default=usual or None,
        metavar="N",
        help=f"choose on N of them, drawn at random; 0 is all (default {usual or '1024, or --limit'})",
    )


@dataclasses.dataclass(frozen=True)
class Examples:
    """A task's parts as the options ask for them.

    Attributes:
        parts: the examples to choose heads on, and those to take metrics on.
        selected: number of selection examples; 0 is all.
        options: the command's; `limit`, `batch_size` and `buckets` are read.
    """

    parts: Parts
    selected: int
    options: argparse.Namespace

    @property
    def selection(self) -> Task:
        """The examples to choose heads on."""
        return self.parts.selection

    @property
    def evaluation(self) -> Task:
        """The examples to take metrics on."""
        return self.parts.evaluation

    def selection_batches(self) -> list[Batch]:
        """Return the batches to choose heads on."""
        options = self.options
        return list(self.selection.batches(options.batch_size, limit=self.selected, buckets=options.buckets))

    def sample(self, number: int) -> list[Batch]:
        """Return a number of batches to rescale or calibrate on, as far as the selection examples reach."""
        return list(self.selection.first_batches(number, self.options.batch_size))

    def described(self, *, selection: bool = True, evaluation: bool = True, selected: int | None = None) -> Described:
        """Return the JSON entries and the notes about the examples that a command has read.

        Args:
            selection, evaluation: whether it has read them.
            selected: number of selection examples that it took, if others than asked for; 0 is all.
        """
        from headjax.evaluation.selection import describe, in_words

        limit = self.selected if selected is None else selected
        chosen = describe(self.selection, limit) if selection else None
        judged = describe(self.evaluation, self.options.limit) if evaluation else None
        return Described({"selection": chosen, "evaluation": judged}, in_words(chosen, judged))


@dataclasses.dataclass(frozen=True)
class Described:
    """What a command says of its examples.

    Attributes:
        data: the keys `selection` and `evaluation` of its JSON.
        notes: the notes of its table.
    """

    data: dict[str, Any]
    notes: tuple[str, ...]


NOTHING_READ = Described({"selection": None, "evaluation": None}, ())
"""What a command without a task says."""


def open_model_and_examples(options: argparse.Namespace) -> tuple[Model, Examples]:
    """Return the model directory that the arguments name and the parts of the task, which fits the model.

    Raises:
        HeadjaxError: there is no such model, task or split, or the task or the examples do not fit the model.
    """
    model, task = open_model_and_task(options)
    return model, examples_of(model, task, options)


def open_model_and_examples_if_any(options: argparse.Namespace) -> tuple[Model, Examples | None]:
    """Return the same for a command that can do without a task.

    Raises:
        HeadjaxError: as `open_model_and_examples`, or there are examples to choose on and no task.
    """
    from headjax.models.model import load

    if options.task:
        return open_model_and_examples(options)
    if options.select:
        raise HeadjaxError("--select: needs a task, name one with --task")
    return load(options.model), None


def examples_of(model: Model, task: Task, options: argparse.Namespace) -> Examples:
    """Return the parts of a loaded task.

    Raises:
        HeadjaxError: there is no such split or file, or its examples do not fit the model.
    """
    from headjax.evaluation.selection import SELECTED, SPLITS, split_task
    from headjax.evaluation.specs import load_task

    select = options.select or SPLITS[0]
    if options.select == "train" and not len(task.data.train):
        raise HeadjaxError(f"--select: {task.name} has no training examples; leave it out to divide the task in halves")
    try:
        parts = split_task(task, select if select in SPLITS else load_task(select, model, options.length))
    except HeadjaxError as error:
        if select in SPLITS:
            raise
        raise HeadjaxError(f"--select: {error}") from None
    selected = options.selected if options.selected is not None else options.limit or SELECTED
    return Examples(parts, selected, options)
