"""The training loop: config -> model -> sharding -> step -> checkpoint -> evaluation, one straight way."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import optax

from headjax.core.errors import ConfigError, DataError, within
from headjax.core.programs import make_room
from headjax.core.progress import Progress, silent
from headjax.data.task import TaskData
from headjax.evaluation.task import measure_of
from headjax.mesh.distributed import is_first, wait_for_all
from headjax.mesh.memory import memory_of
from headjax.mesh.mesh import check_batch_size
from headjax.models.config import Batch, ModelConfig
from headjax.models.memory import check_batch, check_state
from headjax.models.model import Model
from headjax.models.summary import check_kernels
from headjax.models.tasks.classification import class_names, with_class_names
from headjax.storage.paths import check_folder, path_of
from headjax.training.batches import Feed, validation
from headjax.training.checkpoints import Checkpoints
from headjax.training.config import TrainConfig
from headjax.training.optimizer import Optimizer
from headjax.training.recording import MetricWriter, ProfiledSteps, Profiler, Recorder
from headjax.training.run import Keeper, Training, evaluates, trained
from headjax.training.state import TrainState, read_initialization, starting_state
from headjax.training.step import NumberedStep, StepMetrics, train_step
from headjax.training.stopping import StopRequest
from headjax.training.workdir import BestModel, check_workdir, claim_workdir, hold_workdir

AfterStep = Callable[[int, TrainState, StepMetrics], bool]
"""Called after a step has been started, with its number, its state and its metrics, which the device may still be
computing; returns whether the loop ends here."""


def run_steps(
    step: NumberedStep, state: TrainState, batches: Iterator[Batch], steps: range, after: AfterStep
) -> TrainState:
    """Return the state after a series of steps: the one loop of training and distillation.

    The host continues while the device computes; it waits only where `after` reads a value.
    """
    for number in steps:
        batch = next(batches, None)
        if batch is None:
            raise DataError(f"batches: they end after {number - 1} of {steps.stop - 1} steps")
        state, measured = step(number, state, batch)
        if after(number, state, measured):
            break
    return state


class TrainResult(NamedTuple):
    """The end of a training run."""

    model: Model
    path: Path | None
    steps: int
    metrics: Mapping[str, float]
    tokens_per_second: float
    finished: bool
    diverged: str | None = None
    extended_from: int | None = None
    kept_step: int = 0


def train(
    config: TrainConfig,
    workdir: str | Path,
    *,
    data: TaskData | None = None,
    progress: Progress = silent,
    profiled: ProfiledSteps | None = None,
) -> TrainResult:
    """Train a model, or continue an interrupted run of the same config in the same workdir.

    Interrupted by SIGINT or SIGTERM it saves a checkpoint and returns; continued it reaches bit for bit the parameters
    of an uninterrupted run. A run that diverges stops, and its last good checkpoint stays the last one.

    A config with more steps extends the workdir's run, finished or not. Training continues from the last checkpoint,
    with the learning-rate schedule of the new config from that step on.

    Among several processes (see `headjax.mesh.distributed`) each calls this alike, with a workdir that all see. An
    interrupt of any is one of all.

        >>> changes = [f"--config.{name}=512" for name in ("model.vocab_size", "data.vocab_size")]
        >>> changes.append("--config.batch_size=8")
        >>> config = headjax.load_config("configs/quickstart.py:steps=1,path=LICENSE", changes)
        >>> found = headjax.train(headjax.train_config(config), folder / "run")
        >>> found.steps, found.finished, found.path.name
        (1, True, 'model')

    Args:
        config: the run.
        workdir: holds the run's checkpoints, metrics and, at the end, its model directory `model`.
        data: loaded data; None loads what the config names.
        progress: shows the advance, see `headjax.core.progress`.
        profiled: steps to write a trace of, beside the TensorBoard files.

    Raises:
        ConfigError: fields that do not fit together, or the mesh.
        DataError: data that cannot be used.
        CheckpointError: the workdir holds another run, or checkpoints of which none is intact.
        HeadjaxError: another run holds the workdir, it cannot be written, or not all processes see it.
    """
    workdir = path_of(workdir)
    check_folder(workdir)
    if profiled is not None:
        profiled.check(config.steps)
    make_room()
    shown = progress if is_first() else silent
    with shown("reading the model and the data", 0, ""):
        run, start = _prepare(config, workdir, data)
    with hold_workdir(workdir):
        held_steps = claim_workdir(workdir, config)
        result = _train(run, start, workdir, shown, profiled)
    return result._replace(extended_from=held_steps if held_steps < config.steps else None)


def _train(
    run: Training, start: Model | None, workdir: Path, progress: Progress, profiled: ProfiledSteps | None
) -> TrainResult:
    """Train in a workdir whose lock is held, see `train`."""
    config = run.config
    feed = Feed(config, run.model, run.data, run.mesh)
    with Checkpoints(workdir, config.keep_checkpoints) as checkpoints:
        with progress("making the first state" if checkpoints.latest is None else "restoring the checkpoint", 0, ""):
            state = _first_state(run, start, feed, checkpoints, workdir)
        past = (*(() if start is None else start.history), *read_initialization(workdir))
        best = _best_model(run, workdir)
        first = int(state.step)
        # The run before may have ended between a checkpoint and the evaluation of the same step.
        owed = 0 < first < config.steps and evaluates(config, first)
        with (
            MetricWriter(workdir, first, config.tensorboard, evaluates_first=owed or first == config.steps) as metrics,
            Profiler(profiled, workdir / "tensorboard") as profiler,
            StopRequest() as stop,
        ):
            step = profiler.around(_compiling(_step(run), first + 1, progress))
            with progress("training", config.steps, "step") as bar:
                recorder = Recorder(metrics, bar, first)
                keeper = Keeper(run, past, feed, checkpoints, recorder, best, stop, progress, first=first + 1)
                if owed:
                    keeper.evaluate(first, state.params)
                if keeper.diverged is None:
                    remaining = range(first + 1, config.steps + 1)
                    state = run_steps(step, state, feed, remaining, keeper)
            final: Mapping[str, float] = {}
            if keeper.diverged is None and int(state.step) >= config.steps:
                final = keeper.evaluate(config.steps, state.params)
            diverged = keeper.diverged
        if diverged is not None and checkpoints.latest is not None:
            state, _ = checkpoints.restore(checkpoints.latest, run.target())
    with progress("saving the model", 0, ""):
        model = trained(run, past, state.params, int(state.step), final)
        return _result(run, workdir, model, best, recorder.tokens_per_second, diverged)


def _prepare(config: TrainConfig, workdir: Path, data: TaskData | None) -> tuple[Training, Model | None]:
    """Return the run and the model that it starts from, with all checked before the workdir is claimed for it."""
    start = config.trained(config.seed)
    with within("config"):
        mesh = config.mesh.build()
        check_batch_size(config.batch_size, mesh, config.accumulate)
    model = config.architecture() if start is None else start.config
    files, tokenizer = ({}, None) if start is None else (start.files, start.tokenizer)
    there = memory_of(mesh)
    check_state("config.model", model, there)
    check_kernels(model, config.compute, training=True)
    check_workdir(workdir, config)  # before data is loaded; again once no other run can write to it
    if data is None:
        data = config.data.for_classes(class_names(model)).for_files(files).load(tokenizer)
    model = with_class_names(model, data.info.get("labels", ()))
    check_vocabulary(model, data)
    if len(data.validation):
        check_batch("config.batch_size", config.batch_size, data.validation[0], model.width, there, config.accumulate)
    optimizer = _optimizer(config.optimizer, model, config.steps)
    evaluate = validation(config, model, mesh, data)
    return Training(config, model, mesh, data, optimizer, evaluate, files), start


@functools.lru_cache(maxsize=2)
def _optimizer(config: Optimizer, model: ModelConfig, steps: int) -> optax.GradientTransformation:
    """Return the same transformation for equal configs, so that runs which differ in the seed share compilations."""
    return config.build(model.tensors(), steps)


def check_vocabulary(model: ModelConfig, data: TaskData) -> None:
    """Raise `ConfigError` when the tokenizer has ids that the model does not embed; ids may have gaps."""
    tokens = getattr(model, "vocab_size", None)
    if data.tokenizer is None or tokens is None or data.tokenizer.largest_id < tokens:
        return
    raise ConfigError(
        f"config.model.vocab_size: the model embeds {tokens} tokens, "
        f"but the tokenizer's ids reach {data.tokenizer.largest_id}"
    )


def _first_state(run: Training, start: Model | None, feed: Feed, checkpoints: Checkpoints, workdir: Path) -> TrainState:
    """Return the last intact checkpoint's state, and move the feed to its position; without any, a fresh state."""
    restored = checkpoints.restore_newest(run.target())
    if restored is None:
        return starting_state(run.config, run.model, start, run.optimizer, run.mesh, run.data.train, workdir)
    state, position = restored
    feed.go_to(position, workdir)
    return state


def _step(run: Training) -> NumberedStep:
    """Return the jitted step."""
    config = run.config
    step = train_step(
        run.model,
        run.optimizer,
        run.mesh,
        compute=config.compute,
        seed=config.seed,
        accumulate=config.accumulate,
        sharding=config.sharding,
        prng=config.prng,
    )
    return lambda _, state, batch: step(state, batch)


def _compiling(step: NumberedStep, first: int, progress: Progress) -> NumberedStep:
    """Return the same step, whose first call is shown as the compilation that it waits for."""

    def shown(number: int, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        with progress("compiling the train step", 0, "") if number == first else contextlib.nullcontext():
            return step(number, state, batch)

    return shown


def _best_model(run: Training, workdir: Path) -> BestModel | None:
    """Return the place of the best evaluation's model; None where the config keeps the last one."""
    if run.config.keep == "last":
        return None
    measure = measure_of(run.data)
    return BestModel(workdir) if measure is None else BestModel(workdir, measure.headline, measure.higher_is_better)


def _result(
    run: Training,
    workdir: Path,
    model: Model,
    best: BestModel | None,
    tokens_per_second: float,
    diverged: str | None,
) -> TrainResult:
    """Return the end of a run, whose last model is given."""
    steps = model.history[-1]["steps"]
    finished = steps >= run.config.steps and diverged is None
    if finished and best is not None:
        model = best.load()
    made = model.history[-1]
    path = workdir / "model" if finished else None
    if path is not None and is_first():
        model.save(path)
    wait_for_all("model saved")
    return TrainResult(
        model, path, steps, made["metrics"], tokens_per_second, finished, diverged, kept_step=made["steps"]
    )
