"""Models, tasks and examples that commands read, and the options that name them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headjax.commands.options import CommandOptions, argument, option, option_name
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Count, Size

if TYPE_CHECKING:
    from headjax.evaluation.selection import Parts
    from headjax.evaluation.task import Task
    from headjax.models.config import Batch
    from headjax.models.model import Model, ModelFolder


TASK = "task name (python, sst2, ...) or a file"
"""Help of `--task`, also where a command can do without."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigOptions(CommandOptions):
    """Options of commands that read a config file; the command line collects the overrides."""

    config: str = option(
        help="config file, with its arguments; --config.FIELD=VALUE sets a field of it",
        metavar="FILE[:ARGS]",
        reads=True,
    )
    overrides: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchOptions(CommandOptions):
    """Options of commands that compute in batches."""

    batch_size: Size = option(16, "examples (texts, prompts) per batch")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadingOptions(BatchOptions):
    """Options of commands that read the examples of a task."""

    task: str = option(help=TASK, metavar="TASK", reads=True)
    limit: Count = option(0, "use the first N examples; 0 is all")
    length: Size | None = option(
        None, "cut texts, or both sentences of a similarity, to N tokens (default: all positions, up to 512; squad 384)"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BucketOptions(CommandOptions):
    """Options of commands that sort the examples of a task by length."""

    buckets: tuple[Size, ...] = option((), "pad texts to these lengths, such as 16,32,64 (default: the longest)", "L")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions(ReadingOptions, BucketOptions):
    """Options of commands that evaluate a model on a task."""

    model: str = argument("MODEL", "model directory", reads=True)

    @functools.cached_property
    def folder(self) -> ModelFolder:
        """The model directory, opened once for all that the command reads from it."""
        from headjax.models.model import ModelFolder

        return ModelFolder(self.model)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExamplesOptions(TaskOptions):
    """Options of commands that choose heads on some examples of a task, by the policy of `evaluation.selection`."""

    train: str = option(
        "",
        "file or task to choose heads, to calibrate and to fine-tune on; metrics are then taken on all of --task "
        "(default: the task's own training examples; a task with one split is divided in halves)",
        "FILE",
        reads=True,
    )
    select: str = option(
        "", "choose heads on other examples than --train: validation, or a file or task", "SPLIT|FILE", reads=True
    )
    selected: Count | None = option(None, "choose on N of them, drawn at random; 0 is all (default: 1024, or --limit)")


def open_model_and_task(options: TaskOptions, split: str = "validation") -> tuple[Model, Task]:
    """Return the model directory and the task that the options name; the task has been found to fit the model.

    A command that writes a model keeps this one; `task.fit(model)` may have another output.

    Args:
        options: name the model and the task.
        split: see `headjax.load_task`; `all` for a command that chooses no heads, so that it reads whole texts.
    """
    from headjax.evaluation.specs import load_task
    from headjax.mesh.memory import memory_of
    from headjax.models.memory import check_batch

    model = options.folder.model()
    task = load_task(options.task, model, options.length or 0, split=split)
    if task.count():
        check_batch("--batch-size", options.batch_size, task.data.validation[0], model.config.width, memory_of())
    return model, task


def printed_metrics(metrics: Mapping[str, float], task: Task) -> dict[str, float]:
    """Return the metrics that a table shows: perplexity per word only where the task's protocol counts words.

    In source code, or in a language without spaces between words, white space does not separate words.
    """
    counts_words = "words" in task.data.info.get("protocol", {})
    return {name: value for name, value in metrics.items() if name != "word_perplexity" or counts_words}


@dataclasses.dataclass(frozen=True)
class Examples:
    """A task's parts as the options ask for them.

    Attributes:
        parts: the examples to choose heads on, and those to take metrics on.
        selected: number of selection examples; 0 is all.
        options: the command's options.
        train: the task that `--train` names; None without the option.
    """

    parts: Parts
    selected: int
    options: ExamplesOptions
    train: Task | None = None

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

    def described(
        self,
        *,
        selection: bool = True,
        evaluation: bool = True,
        training: bool = False,
        selected: int | None = None,
        purpose: str = "Selection",
    ) -> dict[str, Any]:
        """Return the fields of a result `OnExamples` about the examples that a command has read.

        Args:
            selection, evaluation, training: whether it has read them; `training` are those to fine-tune on.
            selected: number of selection examples that it took, if others than asked for; 0 is all.
            purpose: of the selection examples, for the notes.
        """
        from headjax.evaluation.selection import describe, describe_training, in_words

        limit = self.selected if selected is None else selected
        chosen = describe(self.selection, limit) if selection else None
        judged = describe(self.evaluation, self.options.limit) if evaluation else None
        trained = describe_training(self.evaluation, self.train) if training else None
        fields = {
            "selection": chosen,
            "evaluation": judged,
            "about": in_words(chosen, judged, trained, purpose=purpose),
        }
        return fields | ({"training": trained} if training else {})


def open_model_and_examples(options: ExamplesOptions) -> tuple[Model, Examples]:
    """Return the model directory that the options name and the parts of the task, which fits the model.

    Raises:
        HeadjaxError: there is no such model, task or split, or the task or the examples do not fit the model.
    """
    # Beside training examples of its own a text is read whole.
    model, task = open_model_and_task(options, split="all" if options.train else "validation")
    return model, _examples(model, task, options)


def open_model_and_examples_if_any(options: ExamplesOptions) -> tuple[Model, Examples | None]:
    """Return the same for a command that can do without a task.

    Args:
        options: name the model and maybe a task.

    Raises:
        HeadjaxError: as `open_model_and_examples`, or there are examples to choose on and no task.
    """
    if options.task:
        return open_model_and_examples(options)
    for field in ("train", "select"):
        if getattr(options, field):
            raise HeadjaxError(f"{option_name(options, field)}: needs a task to measure on, name one with --task")
    return options.folder.model(), None


def _examples(model: Model, task: Task, options: ExamplesOptions) -> Examples:
    """Return the parts of a loaded task.

    Raises:
        HeadjaxError: there is no such split or file, or its examples do not fit the model.
    """
    from headjax.evaluation.selection import SELECTED, SPLITS, split_task
    from headjax.evaluation.specs import load_task

    def read(field: str, split: str) -> Task:
        try:
            return load_task(getattr(options, field), model, options.length or 0, split=split)
        except HeadjaxError as error:
            raise HeadjaxError(f"{option_name(options, field)}: {error}") from None

    train = read("train", "all") if options.train else None
    if options.select == "train" and train is None and not len(task.data.train):
        name = option_name(options, "select")
        raise HeadjaxError(f"{name}: {task.name} has no training examples; leave it out to divide the task in halves")
    select = options.select or SPLITS[0]
    parts = split_task(task, select if select in SPLITS else read("select", "validation"), train=train)
    selected = options.selected if options.selected is not None else options.limit or SELECTED
    return Examples(parts, selected, options, train)
