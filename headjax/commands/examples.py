"""Models, tasks and examples that commands read, and the options that name them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from headjax.commands.options import CommandOptions, argument, option
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Count, Positive, Size
from headjax.core.progress import Progress

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.models.config import Batch
    from headjax.models.model import Model


MODEL = "model directory, headjax's or of Hugging Face"
"""Help of MODEL."""

DirectoryKind = Literal["huggingface", "headjax"]

DIRECTORY = "kind of directory that OUT is (default: MODEL's)"
"""Help of the option of a `DirectoryKind`."""

TASK = "task name (python, sst2, ...) or a file"
"""Help of `--task`, also where a command can do without."""


CALIBRATE, FEWEST = 512, 32
"""Greatest and least default number of examples that choose."""

SECONDS = 240.0
"""Time that the passes over the examples that choose may take by default."""

WORK = 16.0
"""Forward passes at the rate of a matrix product that work on an example takes: 8 of reconstruction, at half of it."""

SLOWEST = 5e9
"""Floating-point operations a second that every machine does."""

LENGTHS = (16, 32, 64, 128, 256)
"""Lengths to which texts are padded, so that short ones cost less; each takes a program."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigOptions(CommandOptions):
    """Options of commands that read a config file; the command line collects the overrides."""

    config: str = option(
        help="config file, with its arguments; --config.FIELD=VALUE sets a field of it",
        metavar="FILE[:ARGS]",
        reads="config",
    )
    overrides: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchOptions(CommandOptions):
    """Options of commands that compute in batches."""

    title: ClassVar[str] = "examples"
    batch_size: Size = option(16, "examples (texts, prompts) per batch")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadingOptions(BatchOptions):
    """Options of commands that read the examples of a task."""

    title: ClassVar[str] = "examples"
    task: str = option(help=TASK, metavar="TASK", reads="task")
    limit: Count = option(0, "use the first N examples; 0 is all")
    length: Size | None = option(
        None, "cut texts, or both sentences of a similarity, to N tokens (default: all positions, up to 512; squad 384)"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableOptions(CommandOptions):
    """Options of commands that read tables whose columns have other names."""

    title: ClassVar[str] = "examples"
    columns: tuple[str, ...] = option(
        (), "columns of a table with labels: TEXT,LABEL or TEXT,SECOND,LABEL (default: by name)", "NAMES"
    )


def by_field(options: CommandOptions) -> dict[str, str]:
    """Return the columns that `--columns` of a command names, by field; none of a command without that option."""
    columns: Sequence[str] = getattr(options, "columns", ())
    if not columns:
        return {}
    if len(columns) not in (2, 3):
        raise HeadjaxError("--columns: expected TEXT,LABEL or TEXT,SECOND,LABEL")
    text, *second, label = columns
    return {"text": text, **({"second": second[0]} if second else {}), "label": label}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions(ReadingOptions):
    """Options of commands that evaluate a model on a task."""

    title: ClassVar[str] = "examples"
    model: str = argument("MODEL", MODEL, reads="model")

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths to which texts are padded, besides that of the longest; short ones come first."""
        return LENGTHS

    def loaded(self) -> Model:
        """Return the model of the directory."""
        from headjax.hub.either import read_model

        return read_model(self.model)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExamplesOptions(TaskOptions):
    """Options of commands that choose on some examples of a task and measure on others (`evaluation.selection`)."""

    title: ClassVar[str] = "examples"
    calibration: str = option(
        "",
        "examples that choose: another file or task, or validation; metrics are then taken on all of --task (default: "
        "the task's own training examples; a task with one split is divided in halves)",
        "FILE",
        reads="task",
    )
    calibrate: Count | None = option(
        None,
        f"number of examples that choose; 0 is all (default: --limit, or {CALIBRATE}, fewer where they would take more "
        f"than {SECONDS / 60:.0f} minutes here)",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritingOptions(CommandOptions):
    """Options of commands that write a model made of another one."""

    model: str
    out: str
    format: DirectoryKind | None = option(None, DIRECTORY, name="--to")
    quantize: str | None = None

    def write(self, model: Model, progress: Progress) -> str:
        """Write the model to OUT; return what is to be said about it."""
        from headjax.hub.either import write_model

        return write_model(model, self.out, self.kind(), quantize=self.quantize, progress=progress)

    def kind(self) -> DirectoryKind:
        """Return the kind of directory that OUT becomes."""
        from headjax.hub.either import kind_of_directory

        return self.format or kind_of_directory(self.model)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimedOptions(TaskOptions):
    """Options of commands whose result is one on fewer examples where time runs out."""

    title: ClassVar[str] = "examples"
    max_time: Positive | None = option(
        None, "time limit, after which no further batch is read; the result gives its number of examples", "MINUTES"
    )

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths to which texts are padded; where time may run out, the longest alone keeps their order."""
        return () if self.max_time is not None else super().lengths


class Timed:
    """Batches, the first always, until the time of a command that has begun is over."""

    def __init__(self, batches: Iterable[Batch], options: TimedOptions, parts: int = 1) -> None:
        """Give one of several parts of the command a share of the time."""
        self._batches, self.count, self.ended = batches, 0, False
        self._until = None if options.max_time is None else time.monotonic() + 60.0 * options.max_time / parts

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            if self.count and self._until is not None and time.monotonic() >= self._until:
                self.ended = True
                return
            self.count += 1
            yield batch


def open_model_and_task(options: TaskOptions, split: str = "validation") -> tuple[Model, Task]:
    """Return the model directory and the task, which fits the model; `task.fit(model)` may have another output."""
    from headjax.core.memory import check_batch_memory, memory_of
    from headjax.evaluation.specs import load_task

    model = options.loaded()
    task = load_task(options.task, model, options.length or 0, split=split, columns=by_field(options))
    if task.count():
        check_batch_memory("--batch-size", options.batch_size, task.data.validation[0], model.config.width, memory_of())
    return model, task


def printed_metrics(metrics: Mapping[str, float], task: Task) -> dict[str, float]:
    """Return the metrics that a table shows: perplexity per word only where the task's protocol counts words."""
    # In source code, and in languages without spaces, white space does not separate words.
    counts_words = "words" in task.data.info.get("protocol", {})
    return {name: value for name, value in metrics.items() if name != "word_perplexity" or counts_words}


class Examples(NamedTuple):
    """A task's parts as the options ask for them."""

    selection: Task
    evaluation: Task
    number: int
    options: ExamplesOptions
    notes: tuple[str, ...] = ()

    def scoring(self) -> list[Batch]:
        """Return the batches to score heads on: every example counts once."""
        options = self.options
        return list(self.selection.batches(options.batch_size, limit=self.number, buckets=options.lengths))

    def calibrating(self, seed: int = 0) -> list[Batch]:
        """Return the batches to calibrate on, drawn by a seed; all are full."""
        options, count = self.options, self.number or self.selection.count()
        return list(self.selection.sample(count, options.batch_size, seed=seed, buckets=options.lengths))

    def with_own_output(self, model: Model, changed: Model) -> Model:
        """Return a model that was changed with the task's output with the output that it came with."""
        config: Any = changed.config
        if hasattr(model.config, "task"):
            config = dataclasses.replace(config, task=model.config.task)
        return model.replace(config=config, params=changed.params, history=changed.history)

    def described(self, *, selection: bool = True, evaluation: bool = True) -> dict[str, Any]:
        """Return the fields of a result `OnExamples` about the examples that a command has read."""
        from headjax.evaluation.selection import describe, in_words

        chosen = describe(self.selection, self.number) if selection else None
        judged = describe(self.evaluation, self.options.limit) if evaluation else None
        notes = self.notes if selection else ()
        return {"selection": chosen, "evaluation": judged, "about": (*in_words(chosen, judged), *notes)}


def open_model_and_examples(options: ExamplesOptions) -> tuple[Model, Examples]:
    """Return the model directory that the options name and the parts of the task, which fits the model."""
    from headjax.evaluation.selection import SPLITS, split_task
    from headjax.evaluation.specs import load_task

    other = options.calibration not in ("", *SPLITS)
    # Beside calibration examples of their own, texts are read whole.
    model, task = open_model_and_task(options, split="all" if other else "validation")
    select: str | Task = options.calibration or SPLITS[0]
    if other:
        try:
            select = load_task(options.calibration, model, options.length or 0, columns=by_field(options))
        except HeadjaxError as error:
            raise HeadjaxError(f"--calibration: {error}") from None
    parts = split_task(task, select)
    asked = options.calibrate if options.calibrate is not None else options.limit or None
    number, notes = _affordable(model, parts.selection, options) if asked is None else (asked, ())
    return model, Examples(*parts, number, options, notes)


def _affordable(model: Model, task: Task, options: ExamplesOptions) -> tuple[int, tuple[str, ...]]:
    """Return the default number of examples that choose, and why it is a small one."""
    from headjax.core.timing import matrix_rate

    most = task.count(CALIBRATE)
    if most <= FEWEST:
        return CALIBRATE, ()
    batches = task.sample(FEWEST, options.batch_size, buckets=options.lengths)
    shapes = [next(iter(batch.values())).shape for batch in batches]
    flops = sum(shape[0] * model.config.flops(shape[1]) for shape in shapes) / sum(shape[0] for shape in shapes)
    work = WORK * flops
    if most * work < SECONDS * SLOWEST:  # takes no time to find out
        return CALIBRATE, ()
    rate = matrix_rate()
    number = CALIBRATE
    while number > FEWEST and number * work > SECONDS * rate:
        number //= 2
    if number >= most:
        return CALIBRATE, ()
    minutes = most * work / rate / 60.0
    why = f"this machine multiplies matrices at {rate / 1e9:,.0f} GFLOP/s, {most:,} could take {minutes:,.0f} minutes"
    return number, (f"{number:,} examples choose: {why} (--calibrate).",)


def open_model_and_examples_if_any(options: ExamplesOptions) -> tuple[Model, Examples | None]:
    """Return the same for a command that can do without a task."""
    if options.task:
        return open_model_and_examples(options)
    for name in ("calibration", "calibrate", "max_time"):
        if getattr(options, name, None):
            raise HeadjaxError(f"--{name.replace('_', '-')}: needs a task to measure on, name one with --task")
    return options.loaded(), None
