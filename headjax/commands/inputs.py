"""The start of commands: inputs and outputs are looked at, model and examples read, and the time of the work told.

Folders, model directories and files that exist are replaced with `--overwrite` alone, but for results (`.json`,
`.html`). They are looked at before any work is done, and before JAX is imported.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headjax.commands.options import (
    CALIBRATE,
    FEWEST,
    SECONDS,
    ChangingOptions,
    CommandOptions,
    ExamplesOptions,
    Read,
    TaskOptions,
    TimedOptions,
    WritingOptions,
    by_field,
    declared,
    name_of,
)
from headjax.core.errors import DataError, HeadjaxError
from headjax.core.numbers import duration
from headjax.storage.directories import check_model, check_own
from headjax.storage.files import is_stream
from headjax.storage.paths import check_file, check_folder, is_bucket, path_of, size_of

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.models.config import Batch, ModelConfig
    from headjax.models.model import Model


def check_inputs(options: CommandOptions) -> None:
    """Check that every input which a command names is there; its content is read later."""
    models_first = sorted(dataclasses.fields(options), key=lambda field: declared(field).reads != "model")
    for field in models_first:
        reads, value = declared(field).reads, getattr(options, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if not reads or not each or "://" in each:
                continue
            try:
                _check(reads, each)
            except DataError as error:
                text = str(error).removeprefix("task: ")
                named = field.name == "calibration" or text != str(error)
                raise DataError(f"{name_of(field)}: {text}" if named else text) from None


def _check(reads: Read, value: str) -> None:
    """Check an input, by what an option says that it reads."""
    if reads == "model":
        check_model(path_of(value))
    elif reads == "file":
        if not path_of(value).expanduser().exists():
            raise DataError(f"{value}: no such file")
    elif reads == "config":
        from headjax.training.config_file import config_place

        config_place(value)
    elif reads == "task":
        from headjax.data.rows import SPLITS
        from headjax.data.source import check_task

        if value not in SPLITS:  # of `--calibration`
            check_task(value)


RESULTS = (".json", ".html")
"""Endings of files that are replaced: nobody's data or texts have them."""


def check_outputs(options: CommandOptions) -> None:
    """Check everything that a command will write."""
    named = [getattr(options, field.name) for field in dataclasses.fields(options) if declared(field).reads]
    texts = [text for each in named for text in ((each,) if isinstance(each, str) else each or ())]
    read = {os.path.realpath(word) for text in texts for word in (text, text.partition(":")[2]) if word}
    written: dict[Path, str] = {}
    for field in dataclasses.fields(options):
        kind, value = declared(field).writes, getattr(options, field.name)
        if not kind or not value or value == "-":
            continue
        place = path_of(value)
        if kind == "file":
            check_file(value)
        elif kind == "new" and isinstance(place, Path) and place.is_symlink():
            check_folder(place.resolve())  # a link may lead to a folder that is still to be made
        elif kind == "folder" or not place.is_dir():
            check_folder(value)
        if place in written:
            raise HeadjaxError(f"{name_of(field)}: {value} is {written[place]} of the command, too")
        written[place] = name_of(field)
        danger = "the command reads it" if os.path.realpath(value) in read else _danger(place, kind)
        if danger is not None and not (options.overwrite or is_stream(place)):
            raise HeadjaxError(f"{value}: {danger}; --overwrite replaces it")
        if kind == "new":
            check_own(place)


def _danger(place: Path, kind: str) -> str | None:
    """Return the files that writing to a place would replace; None where nothing would."""
    if kind == "new" and place.exists() and not (place.is_dir() and not any(place.iterdir())):
        return "exists already"
    above = None if is_bucket(place) else next(filter(_is_model, (place, *place.absolute().parents)), None)
    if above is not None:
        return f"in the model directory {above}" if above != place else "a model directory"
    if kind == "file" and place.is_file() and place.suffix not in RESULTS and size_of(place):
        return "exists already"
    return None


def _is_model(folder: Path) -> bool:
    """Return whether a folder is a model directory, ours or of Hugging Face."""
    if not (folder / "config.json").is_file():
        return False
    return (folder / "history.json").is_file() or any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))


# Examples.


class UntilDeadline:
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


@dataclasses.dataclass(frozen=True)
class Examples:
    """A task's parts as the options ask for them.

    Attributes:
        selection: the task on the examples that choose heads, sizes or maps.
        evaluation: the task on the examples that metrics are taken on.
        number: number of examples that choose; 0 is all.
        options: the command's.
        notes: why the number is a small one.
        drawn: the batches that calibrate by their seed, each drawn once.
    """

    selection: Task
    evaluation: Task
    number: int
    options: TaskOptions
    notes: tuple[str, ...] = ()
    drawn: dict[int, list[Batch]] = dataclasses.field(default_factory=dict, repr=False)

    def scoring(self) -> list[Batch]:
        """Return the batches to score heads on: every example counts once."""
        self.require_labels()
        return list(self.selection.batches(**self.options.reading | {"limit": self.number}))

    def require_labels(self, reader: str = "scores and orders by them") -> None:
        """Refuse examples without labels for what reads them."""
        if not self.selection.labelled:
            hint = "prune --by reconstruction --reconstruct, shrink and convert read none"
            raise HeadjaxError(f"--calibration: {self.selection.name} has no labels, which {reader} read; {hint}")

    def calibrating(self, seed: int = 0) -> list[Batch]:
        """Return the batches to calibrate on, drawn by a seed; all are full."""
        if seed not in self.drawn:
            size, buckets = self.options.batch_size, self.options.lengths
            count = self.number or self.selection.count()
            self.drawn[seed] = list(self.selection.sample(count, size, seed=seed, buckets=buckets))
        return self.drawn[seed]

    def described(self, *, selection: bool = True, evaluation: bool = True) -> dict[str, Any]:
        """Return the fields of a result `ExamplesResult` about the examples that a command has read."""
        from headjax.evaluation.measures import Similarities
        from headjax.evaluation.specs import describe, in_words

        chosen = describe(self.selection, self.number) if selection else None
        judged = describe(self.evaluation, self.options.limit) if evaluation else None
        notes = self.notes if selection else ()
        if judged and isinstance(self.options, WritingOptions) and isinstance(self.evaluation.measure, Similarities):
            others = "Other uses of the vectors (search, classification, clustering) were not"
            yours = "headjax evaluate MODEL OUT --task FILE judges yours"
            notes = (*notes, f"Judged: similarities of {judged['task']} alone. {others}; {yours}.")
        return {"selection": chosen, "evaluation": judged, "about": (*in_words(chosen, judged), *notes)}


def start(options: TaskOptions) -> tuple[Model, Examples]:
    """Read the model directory and the examples of the task that a command names; all commands on tasks begin here."""
    from headjax.core.memory import check_batch_memory, memory_of
    from headjax.evaluation.specs import SEED, SPLITS, joined, load_calibration, load_task, split_task

    model = options.loaded()
    files = options.calibration if isinstance(options, ExamplesOptions) else ()
    other = bool({*files} - {*SPLITS})
    reading: dict[str, Any] = {"length": options.length or 0, "columns": by_field(options.columns)}
    # Beside calibration examples of their own, texts are read whole.
    task = load_task(options.task, model, split="all" if other else options.split, **reading)
    if task.count():
        check_batch_memory("--batch-size", options.batch_size, task.data.validation[0], model.config.width, memory_of())
    if not isinstance(options, ExamplesOptions):
        return model, Examples(task, task, options.limit, options)
    try:
        read = [file if file in SPLITS else load_calibration(file, model, **reading) for file in files or SPLITS[:1]]
    except HeadjaxError as error:
        error.args = (f"--calibration: {error}",)
        raise
    parts = [split_task(task, select) for select in read]
    evaluation = next((part.evaluation for part in parts if part.evaluation is not task), task)
    chosen = [part.selection for part in parts]
    asked = options.calibrate if options.calibrate is not None else options.limit or None
    number, notes = affordable(model, joined(chosen, CALIBRATE), options) if asked is None else (asked, ())
    selection = joined(chosen, number, getattr(options, "seed", SEED))
    return model, Examples(selection, evaluation, number, options, notes)


def start_if_named(options: ChangingOptions) -> tuple[Model, Examples | None]:
    """Read the model directory, and the examples if a task is named; options about examples need one."""
    if options.task:
        return start(options)
    for name in ("calibration", "calibrate", "max_time"):
        if getattr(options, name):
            raise HeadjaxError(f"--{name.replace('_', '-')}: needs a task to measure on, name one with --task")
    return options.loaded(), None


# Time.

WORK = 16.0
"""Forward passes at the rate of a matrix product that work on an example takes: 8 of reconstruction, at half of it."""

SLOWEST = 5e9
"""Floating-point operations a second that every machine does."""

SAID = 60.0
"""Expected seconds from which on they are said."""

SLOW = 4.0
"""Most times that a forward pass takes of its matrix products alone."""

ROWS = 8
"""Most examples of the timed batch."""

ABLATING = 0.5
"""Forward passes that the ablation of a head takes."""


class Cost(NamedTuple):
    """Work on the examples that choose.

    Attributes:
        passes: forward passes over them.
        solving: operations that solving maps of n features takes, in n^3: attention's of every layer.
        units: the same of feed-forwards.
        programs: what compiling takes, in times of the forward pass's own; little where programs are kept.
    """

    passes: float = 0.0
    solving: float = 0.0
    units: float = 0.0
    programs: float = 0.0


SCORING, ORDERING, REFITTING = Cost(2.0, programs=12.0), Cost(3.6, 250.0, programs=14.0), Cost(3.4, 80.0, programs=10.0)
"""Costs of scores, of the order by reconstruction, and of a repair; as measured on MiniLM, MPNet and SmolLM2."""

PRICING, BUILDING = Cost(24.0, 80.0, 30.0, programs=30.0), Cost(9.0, 80.0, 20.0, programs=32.0)
"""Costs of measuring the forms of every sub-layer, and of building a choice; as measured on MiniLM and MPNet."""


def cost_of_order(by: str, config: ModelConfig, batches: int) -> Cost:
    """Return about what an order on a number of batches costs."""
    from headjax.heads.head_id import all_heads
    from headjax.heads.orders import LEARNED, OrderConfig

    if by in LEARNED:
        return Cost(SCORING.passes * OrderConfig(by=by).gate_steps / batches)
    known = {"random": Cost(), "ablation": Cost(ABLATING * len(all_heads(config))), "reconstruction": ORDERING}
    return known.get(by, SCORING)


def forward_flops(config: ModelConfig, batches: Iterable[Batch]) -> float:
    """Return the floating-point operations of a forward pass over batches."""
    return sum(_rows(batch) * config.flops(next(iter(batch.values())).shape[1]) for batch in batches)


def solving_flops(config: ModelConfig, costs: Iterable[Cost]) -> float:
    """Return the floating-point operations of solving maps, n^3 of n features each."""
    kinds = (kind for stack in config.attentions().values() for kind in stack)
    features = (kind.num_heads * getattr(kind, "values", getattr(kind, "head_dim", 0)) for kind in kinds)
    units = (layer.hidden for stack in config.stacks().values() for layer in stack.layers)
    attention, feed_forward = sum(n**3.0 for n in features), sum(n**3.0 for n in units)
    return sum(cost.solving * attention + cost.units * feed_forward for cost in costs)


def affordable(model: Model, task: Task, options: TaskOptions) -> tuple[int, tuple[str, ...]]:
    """Return the default number of examples that choose, and why it is a small one."""
    from headjax.core.timing import matrix_rate

    most = task.count(CALIBRATE)
    if most <= FEWEST:
        return CALIBRATE, ()
    batches = task.sample(FEWEST, options.batch_size, buckets=options.lengths)
    work = WORK * forward_flops(model.config, batches) / sum(map(_rows, batches))  # of an example
    if most * work < SECONDS * SLOWEST:  # takes no time to find out
        return CALIBRATE, ()
    rate, number = matrix_rate(), CALIBRATE
    while number > FEWEST and number * work > SECONDS * rate:
        number //= 2
    if number >= most:
        return CALIBRATE, ()
    minutes = most * work / rate / 60.0
    why = f"this machine multiplies matrices at {rate / 1e9:,.0f} GFLOP/s, {most:,} could take {minutes:,.0f} minutes"
    return number, (f"{number:,} examples choose: {why} (--calibrate).",)


def tell_time(
    model: Model,
    examples: Examples | None,
    *,
    batches: Sequence[Batch] = (),
    chosen: Sequence[Cost] = (),
    judged: float = 0.0,
) -> None:
    """Tell how long work on the batches that choose, and `judged` passes over the others, takes; refuse more minutes.

    What is told is processor time, which other work on the machine changes little; `--max-time` goes by the clock.
    Nothing is told of a command that ends by itself when its time is over.
    """
    from headjax.core.timing import matrix_rate, seconds_of
    from headjax.heads.agreement import LOSSES, in_parts

    if examples is None or not (chosen or judged):
        return
    if isinstance(examples.options, TimedOptions) and examples.options.max_time is not None:
        return
    options, task, config = examples.options, examples.evaluation, model.config
    limit = 60.0 * options.max_time if isinstance(options, ChangingOptions) and options.max_time is not None else None
    solving = solving_flops(config, chosen)
    passes = sum(cost.passes for cost in chosen) * forward_flops(config, batches)
    if judged and (count := task.count(options.limit)):
        batch = next(task.batches(**options.reading))
        passes += judged * forward_flops(config, [batch]) / _rows(batch) * count
        batches, model = batches or [batch], task.fit(model)
    work = passes + solving
    if not passes:
        return
    if limit is None and (work < SAID * SLOWEST or SLOW * work < SAID * matrix_rate()):
        return
    rows = {name: array[:ROWS] for name, array in batches[len(batches) // 2].items()}
    timed = in_parts(model, [rows], LOSSES)[0]
    call = functools.partial(model, model.device_batch(timed))
    first, again = seconds_of(call), seconds_of(call)  # the first one compiles
    programs, flops = sum(cost.programs for cost in chosen), forward_flops(config, [timed])
    seconds, used = (
        work / flops * later + programs * max(one - later, 0.0) for one, later in zip(first, again, strict=True)
    )
    if limit is not None and seconds > limit:
        share = max(1.0 - (seconds - limit) / (passes / flops * again[0]), 0.0)
        raise HeadjaxError(
            f"--max-time: it takes about {duration(seconds)}, by a timed pass; {share:.0%} of the examples would fit "
            "(--calibrate, --limit)"
        )
    if used > SAID:
        print(f"plan: about {duration(used)} of processor time, by a timed pass", flush=True)


def _rows(batch: Batch) -> int:
    return len(next(iter(batch.values())))
