"""The training loop: config -> model -> sharding -> step -> checkpoint -> evaluation, one straight way."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from headjax import history
from headjax.data.buckets import LengthBuckets
from headjax.data.ragged import RaggedRows
from headjax.data.records import batches_by_length, evaluation_batches, train_iterator
from headjax.data.task import TaskData
from headjax.errors import ConfigError, DataError
from headjax.evaluation.data_measures import measure_of
from headjax.evaluation.evaluate import evaluate_batches
from headjax.evaluation.task import reduce_batches
from headjax.files import local_folder
from headjax.models.base import Batch, Model, ModelConfig
from headjax.models.kernels import check_kernels
from headjax.parallel.distributed import Vote, is_first, on_this_process, process_shard, wait_for_all
from headjax.parallel.mesh import check_batch_size
from headjax.report.progress import Progress, silent
from headjax.tensors import Params
from headjax.training.checkpoints import Checkpoints, check_workdir, claim_workdir
from headjax.training.clock import StepClock
from headjax.training.config import TrainConfig
from headjax.training.depth import Depth, depth_measurement, depth_record
from headjax.training.divergence import why_diverged
from headjax.training.metrics import MetricWriter, metric_writer
from headjax.training.preemption import StopRequest
from headjax.training.profile import ProfiledSteps, Profiler
from headjax.training.start import read_initialization, starting_state
from headjax.training.state import TrainState, abstract_state
from headjax.training.step import StepMetrics, evaluation_step, measuring_step, put_batch, put_whole_batch, train_step


class TrainResult(NamedTuple):
    """What a training run ends with.

    Attributes:
        model: the trained model.
        path: its model directory; None when the run was interrupted.
        steps: optimizer steps done.
        metrics: the last evaluation, by name.
        tokens_per_second: median over log intervals, compilation left out; 0 when too few steps were run to tell.
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
    step: Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]
    along_depth: Callable[[Params, Params, Batch, int], Depth]
    evaluate: Callable[[Params], Mapping[str, float]]


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

    Among several processes (see `headjax.parallel.distributed`) each calls this alike, with a workdir that all see. An
    interrupt of any is one of all.

    Args:
        config: the run.
        workdir: holds the run's checkpoints, metrics and, at the end, its model directory `model`.
        data: loaded data; None loads what the config names.
        progress: shows the advance, see `headjax.report.progress`.
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
    start = config.start()
    mesh = config.mesh.build()
    check_batch_size(config.batch_size, mesh, config.accumulate)
    check_kernels(start.config, config.compute, training=True)
    check_workdir(workdir, config)
    data = config.data.load(start.tokenizer) if data is None else data
    check_vocabulary(start.config, data)
    claim_workdir(workdir, config)
    optimizer = config.optimizer.build(start.config.tensors(), config.steps)
    run = _build(config, start.config, optimizer, mesh, data)
    with Checkpoints(workdir, config.keep_checkpoints) as checkpoints:
        iterator = train_iterator(data.train, config.batch_size, config.seed, shard=process_shard(mesh))
        target = abstract_state(run.model, optimizer, mesh, config.sharding)
        if checkpoints.latest is None:
            state = starting_state(config, start, optimizer, mesh, data.train, workdir)
        else:
            state, position = checkpoints.restore(checkpoints.latest, target)
            if position["data"] != data.info.get("data"):
                raise DataError(f"config.data: the text is not the one that {workdir} was trained on so far")
            iterator.set_state(position["iterator"])
        with (
            metric_writer(workdir, int(state.step), config.tensorboard) as metrics,
            Profiler(profiled, workdir / "tensorboard") as profiler,
            StopRequest() as stop,
        ):
            shown = progress if is_first() else silent
            state, speeds, diverged = _advance(run, state, iterator, checkpoints, metrics, stop, shown, profiler)
            final = _final_metrics(run, state, metrics) if diverged is None else {}
        if diverged is not None and checkpoints.latest is not None:
            state, _ = checkpoints.restore(checkpoints.latest, target)
    past = (*start.history, *read_initialization(workdir))
    return _result(run, workdir, state, past, final, speeds, diverged)


def _build(
    config: TrainConfig, model: ModelConfig, optimizer: optax.GradientTransformation, mesh: Mesh, data: TaskData
) -> Run:
    step = train_step(
        model,
        optimizer,
        mesh,
        compute=config.compute,
        seed=config.seed,
        accumulate=config.accumulate,
        sharding=config.sharding,
    )
    along_depth = depth_measurement(model, mesh, compute=config.compute, seed=config.seed)
    return Run(config, model, mesh, data, step, along_depth, _evaluator(config, model, mesh, data))


def check_vocabulary(model: ModelConfig, data: TaskData) -> None:
    """Raises `ConfigError` when the tokenizer knows more tokens than the model embeds."""
    embeddings = getattr(model, "embeddings", None)
    if data.tokenizer is not None and embeddings is not None and data.tokenizer.vocab_size > embeddings.vocab_size:
        raise ConfigError(
            f"config.model.vocab_size: the model embeds {embeddings.vocab_size} tokens, "
            f"but the tokenizer has {data.tokenizer.vocab_size}"
        )


def _advance(
    run: Run,
    state: TrainState,
    iterator: Any,
    checkpoints: Checkpoints,
    metrics: MetricWriter,
    stop: StopRequest,
    progress: Progress,
    profiler: Profiler,
) -> tuple[TrainState, list[float], str | None]:
    """Steps until the end, a stop request or divergence.

    Returns:
        The state, the tokens per second of each log interval, and why the run counts as diverged, or None.
    """
    config, speeds, stop_wanted = run.config, [], Vote(run.mesh)
    first = int(state.step)
    clock, measured = StepClock(first), None
    with progress("training", config.steps, "step") as bar:
        bar(first, {})
        for step in range(first + 1, config.steps + 1):
            with clock.input(None if measured is None else measured.loss):
                batch = put_batch(next(iterator), run.mesh)
            with profiler.step(step):
                state, measured = _step(run, state, batch, step, metrics)
            profiler.stepped(step, measured.loss)
            stopping = stop_wanted(stop.requested)  # read once: a signal from here on is for the next step
            last = stopping or step == config.steps
            saving = step % config.checkpoint_every == 0 or last
            logging = step % config.log_every == 0 or last or step == first + 1
            diverged = why_diverged(step, measured, config.diverged_above) if saving or logging else None
            if logging or diverged is not None:
                values = {name: float(value) for name, value in measured._asdict().items()}
                seconds = clock.read(step)
                speed = values["targets"] / seconds.step_seconds
                if step > first + 1:
                    speeds.append(speed)
                values |= {"tokens_per_second": speed} | seconds._asdict()
                metrics.write(step, {f"train/{name}": value for name, value in values.items()})
                bar(step, {"loss": values["loss"], "tokens/s": speed})
            if diverged is not None:
                metrics.write(step, {"train/diverged": 1.0})
                return state, speeds, f"{diverged}; {checkpoints.describe_latest()}"
            if saving:
                position = {"iterator": iterator.get_state(), "data": run.data.info.get("data")}
                with clock.checkpoint(state):
                    checkpoints.save(step, state, position)
                metrics.settle()
            if stopping:
                break
            if config.evaluate_every and step % config.evaluate_every == 0 and not last:
                evaluated = run.evaluate(state.params)
                metrics.write(step, {f"validation/{name}": value for name, value in evaluated.items()})
                clock.restart(step)
    return state, speeds, None


def _step(
    run: Run, state: TrainState, batch: Batch, number: int, metrics: MetricWriter
) -> tuple[TrainState, StepMetrics]:
    """One step, measured along depth where the config asks for it."""
    every = run.config.diagnose_every
    if every == 0 or number % every:
        return run.step(state, batch)
    before = jax.tree.map(jnp.copy, state.params)  # a step donates its state
    state, measured = run.step(state, batch)
    metrics.write(number, depth_record(run.along_depth(before, state.params, batch, number - 1)))
    return state, measured


def _evaluator(
    config: TrainConfig, model: ModelConfig, mesh: Mesh, data: TaskData
) -> Callable[[Params], Mapping[str, float]]:
    if len(data.validation) == 0:
        raise DataError("config.data: the validation split is empty")

    def batches() -> Iterable[Batch]:
        return (put_whole_batch(batch, mesh) for batch in _validation_batches(data, config.batch_size))

    measure = measure_of(config.data, data)
    if measure is None:
        step = evaluation_step(model, mesh, compute=config.compute)
        return lambda params: evaluate_batches(step, params, batches())
    measuring = measuring_step(measure.fit(model), measure, mesh, compute=config.compute)
    return lambda params: reduce_batches(measure, [measuring(params, batch) for batch in batches()]).metrics


def _validation_batches(data: TaskData, batch_size: int) -> Iterable[Batch]:
    """The validation split, padded as little as the training split is."""
    if isinstance(data.train, LengthBuckets) and isinstance(data.validation, RaggedRows):
        return batches_by_length(data.validation, batch_size, data.train.bounds)
    return evaluation_batches(data.validation, batch_size)


def _final_metrics(run: Run, state: TrainState, metrics: MetricWriter) -> Mapping[str, float]:
    """The evaluation of a finished run, recorded; an interrupted one stops without."""
    if int(state.step) < run.config.steps:
        return {}
    final = run.evaluate(state.params)
    metrics.write(int(state.step), {f"validation/{name}": value for name, value in final.items()})
    return final


def _result(
    run: Run,
    workdir: Path,
    state: TrainState,
    past: tuple[Mapping[str, Any], ...],
    metrics: Mapping[str, float],
    speeds: list[float],
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
    return TrainResult(model, path, steps, metrics, statistics.median(speeds) if speeds else 0.0, finished, diverged)
