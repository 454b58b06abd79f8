"""The training loop: config -> model -> sharding -> step -> checkpoint -> evaluation, one straight way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import optax
from jax.sharding import Mesh

from headjax.core import history
from headjax.core.errors import ConfigError
from headjax.core.files import local_folder
from headjax.core.progress import Progress, silent
from headjax.data.task import TaskData
from headjax.mesh.distributed import Vote, is_first, on_this_process, wait_for_all
from headjax.mesh.mesh import check_batch_size
from headjax.models.config import ModelConfig
from headjax.models.model import Model
from headjax.models.recipe import Start
from headjax.models.summary import check_kernels
from headjax.models.tasks.classification import class_names, with_class_names
from headjax.training.checkpoints import Checkpoints, check_workdir, claim_workdir
from headjax.training.config import TrainConfig
from headjax.training.depth import depth_measurement, diagnosed
from headjax.training.divergence import why_diverged
from headjax.training.due import due_after
from headjax.training.feed import Feed
from headjax.training.metrics import MetricWriter, metric_writer
from headjax.training.preemption import StopRequest
from headjax.training.profile import ProfiledSteps, Profiler
from headjax.training.recorder import Recorder
from headjax.training.start import read_initialization, starting_state
from headjax.training.state import TrainState, abstract_state
from headjax.training.step import NumberedStep, train_step
from headjax.training.validation import Validation, validation


class TrainResult(NamedTuple):
    """What a training run ends with.

    Attributes:
        model: the trained model.
        path: its model directory; None when the run was interrupted.
        steps: optimizer steps done.
        metrics: the last evaluation, by name.
        tokens_per_second: tokens read a second, padding left out (of both sides in encoder-decoders; patches of
            images): median over log intervals, compilation left out; 0 when too few steps were run to tell.
        finished: False when the run was interrupted or diverged; an interrupted one started again goes on.
        diverged: why and when the run counts as diverged, in a line; None when it did not. The model and the steps are
            then those of the last good checkpoint (with none, the model as it was when the run stopped).
    """

    model: Model
    path: Path | None
    steps: int
    metrics: Mapping[str, float]
    tokens_per_second: float
    finished: bool
    diverged: str | None = None


@dataclasses.dataclass(frozen=True)
class Run:
    """The fixed parts of a run, built once from its config."""

    config: TrainConfig
    model: ModelConfig
    mesh: Mesh
    data: TaskData
    optimizer: optax.GradientTransformation
    evaluate: Validation

    def restore(self, checkpoints: Checkpoints, step: int) -> tuple[TrainState, dict[str, Any]]:
        """A checkpoint's state, laid out as this run does, and its position in the data."""
        target = abstract_state(self.model, self.optimizer, self.mesh, self.config.sharding)
        return checkpoints.restore(step, target)


def train(
    config: TrainConfig,
    workdir: str | Path,
    *,
    data: TaskData | None = None,
    progress: Progress = silent,
    profiled: ProfiledSteps | None = None,
) -> TrainResult:
    """Trains a model, or goes on where an interrupted run of the same config in the same workdir stopped.

    Interrupted by SIGINT or SIGTERM it saves a checkpoint and returns; continued it reaches bit for bit the parameters
    of an uninterrupted run. A run that diverges stops, and its last good checkpoint stays the last one.

    Among several processes (see `headjax.mesh.distributed`) each calls this alike, with a workdir that all see. An
    interrupt of any is one of all.

    Args:
        config: the run.
        workdir: holds the run's checkpoints, metrics and, at the end, its model directory `model`.
        data: loaded data; None loads what the config names.
        progress: shows the advance, see `headjax.core.progress`.
        profiled: steps to write a trace of, beside the TensorBoard files.

    Raises:
        ConfigError: fields that do not fit together, or the mesh.
        DataError: data that cannot be used.
        CheckpointError: the workdir holds another run or unreadable checkpoints.
        HeadjaxError: the workdir cannot be written, or not all processes see it.
    """
    workdir = local_folder(workdir)
    if profiled is not None:
        profiled.check(config.steps)
    run, start = _prepare(config, workdir, data)
    feed = Feed(config, run.model, run.data, run.mesh)
    with Checkpoints(workdir, config.keep_checkpoints) as checkpoints:
        state = _first_state(run, start, feed, checkpoints, workdir)
        with (
            metric_writer(workdir, int(state.step), config.tensorboard) as metrics,
            Profiler(profiled, workdir / "tensorboard") as profiler,
            StopRequest() as stop,
        ):
            step = profiler.around(_step(run, metrics))
            with (progress if is_first() else silent)("training", config.steps, "step") as bar:
                recorder = Recorder(metrics, bar, int(state.step))
                state, diverged = _advance(run, step, state, feed, checkpoints, recorder, stop)
            final: Mapping[str, float] = {}
            if diverged is None and int(state.step) >= config.steps:
                final = run.evaluate(state.params)
                recorder.evaluated(config.steps, final)
        if diverged is not None and checkpoints.latest is not None:
            state, _ = run.restore(checkpoints, checkpoints.latest)
    past = (*start.history, *read_initialization(workdir))
    return _result(run, workdir, state, past, final, recorder.tokens_per_second, diverged)


def _prepare(config: TrainConfig, workdir: Path, data: TaskData | None) -> tuple[Run, Start]:
    """The run and what it starts from, with all checked that can be before the workdir is claimed for it."""
    start, mesh = config.start(), config.mesh.build()
    model = start.config
    check_batch_size(config.batch_size, mesh, config.accumulate)
    check_kernels(model, config.compute, training=True)
    check_workdir(workdir, config)
    if data is None:
        data = config.data.for_classes(class_names(model)).load(start.tokenizer)
    model = with_class_names(model, data.info.get("labels", ()))
    start = start._replace(config=model)
    check_vocabulary(model, data)
    claim_workdir(workdir, config)
    optimizer = config.optimizer.build(model.tensors(), config.steps)
    return Run(config, model, mesh, data, optimizer, validation(config, model, mesh, data)), start


def check_vocabulary(model: ModelConfig, data: TaskData) -> None:
    """Raises `ConfigError` when the tokenizer has ids that the model does not embed; ids may have gaps."""
    embeddings = getattr(model, "embeddings", None)
    if data.tokenizer is None or embeddings is None or data.tokenizer.largest_id < embeddings.vocab_size:
        return
    raise ConfigError(
        f"config.model.vocab_size: the model embeds {embeddings.vocab_size} tokens, "
        f"but the tokenizer's ids reach {data.tokenizer.largest_id}"
    )


def _first_state(run: Run, start: Start, feed: Feed, checkpoints: Checkpoints, workdir: Path) -> TrainState:
    """The last checkpoint's state, and the feed at its position; without a checkpoint that of a fresh start."""
    if checkpoints.latest is None:
        return starting_state(run.config, start, run.optimizer, run.mesh, run.data.train, workdir)
    state, position = run.restore(checkpoints, checkpoints.latest)
    feed.go_to(position, workdir)
    return state


def _step(run: Run, metrics: MetricWriter) -> NumberedStep:
    """The jitted step, measured along depth where the config asks for it."""
    config = run.config
    jitted = train_step(
        run.model,
        run.optimizer,
        run.mesh,
        compute=config.compute,
        seed=config.seed,
        accumulate=config.accumulate,
        sharding=config.sharding,
        prng=config.prng,
    )
    along_depth = depth_measurement(run.model, run.mesh, compute=config.compute, seed=config.seed, prng=config.prng)
    return diagnosed(lambda _, state, batch: jitted(state, batch), along_depth, config.diagnose_every, metrics.write)


def _advance(
    run: Run,
    step: NumberedStep,
    state: TrainState,
    feed: Feed,
    checkpoints: Checkpoints,
    recorder: Recorder,
    stop: StopRequest,
) -> tuple[TrainState, str | None]:
    """Steps until the end, a stop request or divergence.

    Returns:
        The state, and why the run counts as diverged, or None.
    """
    config, stop_wanted, done = run.config, Vote(run.mesh), int(state.step)
    for number in range(done + 1, config.steps + 1):
        with recorder.waiting_for_input():
            batch = next(feed)
        state, measured = step(number, state, batch)
        recorder.stepped(measured)
        checkpoints.record_complete()
        # A stop is voted on once a step: a signal from here on is for the next one.
        due = due_after(number, config, first=number == done + 1, stopping=stop_wanted(stop.requested))
        diverged = why_diverged(number, measured, config.diverged_above) if due.save or due.record else None
        if due.record or diverged is not None:
            recorder.record(number, measured)
        if diverged is not None:
            recorder.diverged(number)
            return state, f"{diverged}; {checkpoints.describe_latest()}"
        if due.save:
            with recorder.saving(state):
                checkpoints.save(number, state, feed.position)
        if due.stop:
            break
        if due.evaluate:
            recorder.evaluated(number, run.evaluate(state.params))
    return state, None


def _result(
    run: Run,
    workdir: Path,
    state: TrainState,
    past: tuple[Mapping[str, Any], ...],
    metrics: Mapping[str, float],
    tokens_per_second: float,
    diverged: str | None,
) -> TrainResult:
    steps = int(state.step)
    finished = steps >= run.config.steps and diverged is None
    entry = history.entry("train", steps=steps, data=dict(run.data.info), metrics=dict(metrics))
    model = Model(run.model, on_this_process(state.params, run.mesh), (*past, entry), run.data.tokenizer)
    path = workdir / "model" if finished else None
    if path is not None and is_first():
        model.save(path)
    wait_for_all("model saved")
    return TrainResult(model, path, steps, metrics, tokens_per_second, finished, diverged)
