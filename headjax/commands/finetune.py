"""`headjax finetune`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headjax.commands.models import ModelResult, compared, evaluate_each
from headjax.commands.options import MODEL, WritingOptions, argument, option
from headjax.commands.outputs import key, table_of
from headjax.commands.train import MAX_TIME, Run, run_fields
from headjax.core import numbers
from headjax.core.errors import CheckpointError, HeadjaxError, require
from headjax.core.fields import STEPS_END, Count, Listed, Positive, Size, Steps, shown
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table
from headjax.storage.directories import remove_directory, replace_directory
from headjax.storage.paths import absolute, path_of, source_of

if TYPE_CHECKING:
    from headjax.commands.own_data import InferredTask
    from headjax.data.examples import TaskData
    from headjax.models.model import Model
    from headjax.training.config import TrainConfig
    from headjax.training.loop import TrainResult

CHECKPOINT_EVERY = 200
"""Steps between the checkpoints from which an interrupted run continues."""

RECORDS = 50
"""Approximate number of records of the training loss in a run."""


TrainedTask = Literal[
    "classification", "pairs", "multi_label", "regression", "similarity", "retrieval", "tokens", "questions",
    "translation", "text", "images",
]  # fmt: skip
"""Tasks that a model can be trained for; `pairs` is a classification of pairs of texts."""


class Options(WritingOptions):
    model: str = argument("MODEL", f"{MODEL}, to start from", reads="model")
    out: str = argument("OUT", "folder of the fine-tuned model", writes="new")
    teacher: str = option(
        "", f"{MODEL}, to distil from: its logits (temperature 2) count as much as the labels; texts without labels "
        "learn its vectors", "MODEL", reads="model",
    )  # fmt: skip
    train: str = option(help="table, SQuAD's JSON, text or folder of images to train on", metavar="FILE", reads="task")
    validation: str = option(
        "", "file to evaluate on (default: some of the training file is held out)", "FILE", reads="task"
    )
    task: TrainedTask | None = option(None, "what to train for (default: by the file's columns and the model)")
    columns: tuple[str, ...] = option(
        (), "columns of a table: TEXT,LABEL or TEXT,SECOND,LABEL or SOURCE,TARGET (default: by name)", "NAMES"
    )
    length: Size | None = option(
        None, "cut texts to N tokens (default: the model's positions, at most 512; questions 384, translations 128)"
    )
    epochs: Positive = option(3.0, "times that every training example is read")
    steps: Steps | None = option(None, "train for N steps instead of epochs")
    batch_size: Size = option(16, "examples per step")
    learning_rate: Positive = option(5e-5, "peak learning rate, after a tenth of the steps; then a line down to 0", "R")
    evaluations: Listed = option(5, "points of the learning curve: evaluations at equal distances")
    keep: Literal["best", "last"] = option("best", "keep the weights of the best evaluation, or of the last step")
    seed: Count = option(0, "seed of the order of examples and of dropout")
    max_time: Positive | None = option(None, MAX_TIME, "MINUTES")

    @property
    def reading(self) -> dict[str, Any]:
        return super().reading | {"batch_size": self.batch_size}


class Result(ModelResult, Run):
    title = "Fine-tuning"

    task: str = key("what it was trained for")
    examples: Mapping[str, int] = key("numbers of `train` and `validation`")
    validation: str = key("where the validation examples come from")
    learning_curve: Sequence[Mapping[str, float]] = key("evaluations: `step`, `epoch`, `train_loss`, metrics")

    def facts(self) -> dict[str, str]:
        train, validation = self.examples["train"], self.examples["validation"]
        examples = f"{train:,} to train on, {validation:,} to evaluate on"
        return {**super().facts(), "task": self.task, "examples": examples, "validation": self.validation}

    def tables(self) -> Sequence[Table]:
        names = list(dict.fromkeys(name for point in self.learning_curve for name in point))
        digits = {"step": numbers.fixed(0), "epoch": numbers.fixed(2)}
        columns = {
            name: Column(name.replace("_", " ").capitalize(), digits.get(name, numbers.significant)) for name in names
        }
        (run,) = super().tables()
        run = dataclasses.replace(run, notes=()) if self.comparison else run  # which has them, too
        return [run, *([table_of(columns, self.learning_curve)] if names else []), *self.comparison]


def run(options: Options, progress: Progress) -> Result:
    """Trains a model on your own files and writes it as a model directory; an interrupted run continues."""
    from headjax.commands.own_data import infer_task, texts_to_distil
    from headjax.data.source import classes_of
    from headjax.evaluation.measures import LanguageModelling
    from headjax.evaluation.task import Evaluation, Task, measure_of
    from headjax.hub.either import kind_of_directory, read_model
    from headjax.training.recording import read_metrics

    model = read_model(options.model, progress=progress)
    teacher = read_model(options.teacher, progress=progress) if options.teacher else None
    reading: dict[str, Any] = {name: getattr(options, name) for name in ("validation", "columns")}
    reading["length"] = options.length or 0
    texts = None
    if teacher is not None and options.task in (None, "similarity"):
        texts = texts_to_distil(model, teacher, options.train, **reading)
    if texts is None:
        inferred = infer_task(model, options.train, task=options.task, **reading)
        data = inferred.data.load(model.tokenizer)
    else:
        inferred, data = texts
    start, workdir = absolute(source_of(options.model)), workdir_of(options.out)
    copy = workdir.with_name(f"{workdir.name}.start")
    if kind_of_directory(start) != "headjax":  # a run starts from headjax's own kind
        model.save(copy)
        start = copy
    config = run_config(options, start, inferred, len(data.train))
    try:
        result, written = _trained(options, workdir, data, config, teacher, progress)
    except CheckpointError as error:
        raise HeadjaxError(f"{error} To start again, remove that folder.") from None
    curve = learning_curve(read_metrics(workdir / "metrics.jsonl"), options.batch_size / len(data.train))
    if result.finished or result.diverged is not None:
        remove_directory(workdir)
        remove_directory(copy)
    fields = run_fields(result, options.out, classes_of(result.model), config.steps)
    if result.path is not None:
        task = Task(options.train, data, measure_of(data) or LanguageModelling())
        evaluations = [Evaluation(dict(result.metrics), 0, {}, result.notes)]
        if inferred.output is None:  # the model had this output before, so that the metrics of both are comparable
            evaluations = evaluate_each((model, result.model), task, options, progress)
        fields |= compared(model, result.model, options, progress, task, evaluations, written)
    return Result(
        task=inferred.task,
        examples={"train": len(data.train), "validation": len(data.validation)},
        validation=inferred.division,
        learning_curve=curve,
        **fields,
    )


def _trained(
    options: Options, workdir: Path, data: TaskData, config: TrainConfig, teacher: Model | None, progress: Progress
) -> tuple[TrainResult, str]:
    """Train, write the model to OUT, and return the result with what is to be said of OUT."""
    from headjax.models.directory import LAYOUT
    from headjax.training.loop import train

    seconds = None if options.max_time is None else 60.0 * options.max_time
    result = train(config, workdir, data=data, teacher=teacher, progress=progress, max_seconds=seconds)
    if result.path is not None and options.kind() == "headjax":
        replace_directory(result.path, path_of(options.out), LAYOUT)
    elif result.path is not None:
        return result, options.write(result.model, progress)
    return result, ""


def workdir_of(out: str) -> Path:
    """Return the hidden folder beside OUT that holds a run's checkpoints until it has finished."""
    path = absolute(path_of(out).expanduser())
    return path.with_name(f".{path.name}.finetune")


def run_config(options: Options, start: Path, inferred: InferredTask, examples: int) -> TrainConfig:
    """Return the training run that the options describe."""
    from headjax.training.config import AdamW, LinearDecay, TrainConfig

    steps = options.steps or max(1, round(options.epochs * examples / options.batch_size))
    many = f"{shown(options.epochs)} times {examples} examples are 2**31 steps of {options.batch_size} or more"
    require(steps < STEPS_END, "--epochs", many)
    return TrainConfig(
        start=str(start),
        task=inferred.output,
        data=inferred.data,
        batch_size=options.batch_size,
        steps=steps,
        optimizer=AdamW(schedule=LinearDecay(peak=options.learning_rate, warmup_steps=steps // 10), b2=0.999),
        log_every=max(1, steps // RECORDS),
        evaluate_every=-(-steps // options.evaluations),
        checkpoint_every=CHECKPOINT_EVERY,
        keep_checkpoints=1,
        keep=options.keep,
        tensorboard=False,
        seed=options.seed,
    )


def learning_curve(records: Sequence[Mapping[str, Any]], epochs_per_step: float) -> list[dict[str, float]]:
    """Return the evaluations of a run, each with the mean of the losses recorded since the one before."""
    points: list[dict[str, float]] = []
    losses: list[float] = []
    for record in records:
        if "train/loss" in record:
            losses.append(record["train/loss"])
        metrics = {
            name.removeprefix("validation/"): value for name, value in record.items() if name.startswith("validation/")
        }
        if metrics:
            point = {"step": record["step"], "epoch": record["step"] * epochs_per_step}
            mean = {"train_loss": sum(losses) / len(losses)} if losses else {}
            points.append({**point, **mean, **metrics})
            losses = []
    return points
