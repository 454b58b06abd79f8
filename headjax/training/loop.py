"""The training loop: config -> model -> sharding -> step -> checkpoint -> evaluation, one straight way."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headjax.core.errors import HeadjaxError
from headjax.core.programs import evict_compiled
from headjax.core.progress import Progress, silent
from headjax.core.tensors import Params
from headjax.data.examples import TaskData
from headjax.evaluation.task import Evaluation
from headjax.mesh.distributed import Vote, is_first, on_first, wait_for_all
from headjax.models.model import Model
from headjax.storage.directories import hold
from headjax.storage.paths import check_folder, path_of
from headjax.training.config import TrainConfig
from headjax.training.recording import TENSORBOARD, Metrics, Profiler
from headjax.training.run import Feed, Training, prepare
from headjax.training.step import StepMetrics, TrainState
from headjax.training.workdir import BestModel, Checkpoints, claim_workdir

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainResult(NamedTuple):
    """The end of a training run.

    Attributes:
        steps: that have been trained.
        metrics: on the validation examples.
        diverged: why the run stopped early.
        kept_step: step whose weights the model has.
    """

    model: Model
    path: Path | None
    steps: int
    metrics: Mapping[str, float]
    tokens_per_second: float
    finished: bool
    diverged: str | None = None
    kept_step: int = 0
    notes: tuple[str, ...] = ()


def train(
    config: TrainConfig,
    workdir: str | Path,
    *,
    data: TaskData | None = None,
    teacher: Model | None = None,
    progress: Progress = silent,
    profiled: range = range(0),
    max_seconds: float | None = None,
) -> TrainResult:
    """Train a model, or continue an interrupted run of the same config in the same workdir.

    Interrupted by SIGINT, SIGTERM or `max_seconds` it saves a checkpoint and returns; continued it reaches bit for bit
    the parameters of an uninterrupted run. A run that diverges stops, and its last good checkpoint stays the last one.

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
        workdir: holds the run's checkpoints, metrics and, at the end, its model directory `model`.
        data: loaded data; None loads what the config names.
        teacher: a model whose logits (at temperature 2) count as much as the labels, see `headjax.distill`.
        progress: shows the advance, see `headjax.core.progress`.
        profiled: numbers of the steps to write a trace of, counted from 1, beside the TensorBoard files.
        max_seconds: seconds after which no further step begins; None trains to the end.

    Raises:
        ConfigError: fields that do not fit together, or the mesh.
        DataError: data that cannot be used.
        CheckpointError: the workdir holds another run, or checkpoints of which none is intact.
        HeadjaxError: another run holds the workdir, it cannot be written, or not all processes see it.
    """
    started, workdir = time.monotonic(), path_of(workdir)
    check_folder(workdir)
    if profiled and profiled[-1] > config.steps:
        span = f"{profiled[0]}:{profiled[-1]}"
        raise HeadjaxError(f"--profile-steps: {span} goes beyond the run's {config.steps} steps")
    evict_compiled()
    shown = progress if is_first() else silent
    with shown("reading the model and the data", 0, ""):
        run, start = prepare(config, workdir, data, teacher)
    with contextlib.ExitStack() as stack:
        on_first(lambda: stack.enter_context(hold(workdir)))
        claim_workdir(workdir, config)
        seconds = None if max_seconds is None else max_seconds - (time.monotonic() - started)
        return _train(run, start, workdir, shown, profiled, seconds)


def _train(
    run: Training, start: Model | None, workdir: Path, progress: Progress, profiled: range, seconds: float | None
) -> TrainResult:
    """Train in a workdir whose lock is held, see `train`."""
    config, trainer, feed = run.config, run.trainer, Feed(run)
    with Checkpoints(workdir, config.keep_checkpoints) as checkpoints:
        begins = checkpoints.latest is None
        with progress("making the first state" if begins else "restoring the checkpoint", 0, ""):
            if begins:
                state, past = run.first_state(start)
            else:
                state, position = checkpoints.restore(checkpoints.latest, trainer.abstract_state())
                feed.go_to(position, workdir)
                past = tuple(position["history"])
        first = int(state.step)
        with (
            stop_requests(seconds) as stop,
            progress("training", config.steps, "step") as bar,
            Metrics(workdir, first, config.tensorboard, bar) as metrics,
            Profiler(profiled, workdir / TENSORBOARD) as profiler,
        ):
            best = BestModel(workdir, run.measure) if config.keep == "best" else None
            keeper = Keeper(run, past, feed, checkpoints, metrics, best, stop, progress)
            # The run before may have ended between a checkpoint and the evaluation of the same step.
            if 0 < first < config.steps and keeper.evaluates(first):
                keeper.evaluate(first, state.params)
            # The host continues while the device computes; it waits only where the keeper reads a value.
            for number in range(first + 1, config.steps + 1) if keeper.diverged is None else ():
                batch = next(feed)
                with progress("compiling the train step", 0, "") if number == first + 1 else contextlib.nullcontext():
                    state, measured = profiler.around(number, trainer, state, batch)
                if keeper.after(number, state, measured):
                    break
            final = Evaluation({}, 0, {})
            if keeper.diverged is None and int(state.step) >= config.steps:
                final = keeper.evaluate(config.steps, state.params)
        if keeper.diverged is not None and checkpoints.latest is not None:
            state, _ = checkpoints.restore(checkpoints.latest, trainer.abstract_state())
    with progress("saving the model", 0, ""):
        return _result(run, keeper, workdir, state, final)


@dataclasses.dataclass
class Keeper:
    """Duties after each step of a run: records, checkpoints, evaluations, and the end."""

    run: Training
    past: tuple[Mapping[str, Any], ...]
    feed: Feed
    checkpoints: Checkpoints
    metrics: Metrics
    best: BestModel | None
    stop: threading.Event
    progress: Progress
    diverged: str | None = None

    def __post_init__(self) -> None:
        self._stop_wanted = Vote(self.run.trainer.mesh)

    def after(self, number: int, state: TrainState, measured: StepMetrics) -> bool:
        """Keep a step that has been started, which the device may still compute; return whether the run ends here."""
        config, metrics = self.run.config, self.metrics
        # A stop is voted on once a step: a signal from here on is for the next one.
        ends = self._stop_wanted(self.stop.is_set()) or number == config.steps
        records = ends or number == metrics.first or number % config.log_every == 0
        saves = ends or number % config.checkpoint_every == 0
        reason = why_diverged(number, measured, config.diverged_above) if saves or records else None
        if records or reason is not None:
            metrics.trained(number, measured)
        if reason is not None:
            self._diverge(number, reason)
            return True
        if saves:
            self.checkpoints.save(number, state, {**self.feed.position, "history": list(self.past)})
            metrics.publish()
        # The end of a run has an evaluation of its own; one that is stopped here evaluates when it goes on.
        if not ends and self.evaluates(number):
            self.evaluate(number, state.params)
        return ends or self.diverged is not None

    def evaluates(self, number: int) -> bool:
        """Return whether parameters are evaluated after a step that is not the last."""
        every = self.run.config.evaluate_every
        return every > 0 and number % every == 0

    def evaluate(self, number: int, params: Params) -> Evaluation:
        """Record an evaluation; without a finite loss the run has diverged, and the step's checkpoint is deleted."""
        with self.progress("evaluating", 0, "batch") as bar:
            evaluation = self.run.evaluate(params, bar)
        loss = evaluation.metrics.get("loss", 0.0)
        if self.best is not None and math.isfinite(loss):
            self.best.offer(evaluation.metrics, lambda: self.run.trained(self.past, params, number, evaluation))
        self.metrics.evaluated(number, evaluation.metrics)
        if not math.isfinite(loss):
            self.checkpoints.discard(number)
            self._diverge(number, f"the validation loss of step {number} is {loss}")
        return evaluation

    def _diverge(self, number: int, reason: str) -> None:
        self.metrics.write(number, {"train/diverged": 1.0})
        self.checkpoints.wait()
        good, path = self.checkpoints.latest, self.checkpoints.path
        last = "there is no good checkpoint" if good is None else f"the last good checkpoint is {path / str(good)}"
        self.diverged = f"{reason}; {last}"


def why_diverged(step: int, measured: StepMetrics, limit: float | None) -> str | None:
    """Return the reason for which a step's metrics mean that the run has diverged, in a line; None if they do not."""
    loss, norm = float(measured.loss), float(measured.gradient_norm)
    if not math.isfinite(loss):
        return f"the loss of step {step} is {loss}"
    if not math.isfinite(norm):
        return f"the gradient of step {step} has norm {norm}"
    if limit is not None and loss > limit:
        return f"the loss of step {step} is {loss:.4g}, more than diverged_above={limit:g}"
    return None


def _result(run: Training, keeper: Keeper, workdir: Path, state: TrainState, final: Evaluation) -> TrainResult:
    """Return the end of a run, with its model saved if it has finished."""
    steps = int(state.step)
    model = run.trained(keeper.past, state.params, steps, final)
    finished = steps >= run.config.steps and keeper.diverged is None
    if finished and keeper.best is not None:
        model = keeper.best.load()
    if finished and is_first():
        model.save(workdir / "model")
    wait_for_all("model saved")
    path, entry, speed = workdir / "model" if finished else None, model.history[-1], keeper.metrics.tokens_per_second
    kept, notes = entry["steps"], tuple(entry.get("notes", ()))
    return TrainResult(model, path, steps, entry["metrics"], speed, finished, keeper.diverged, kept, notes)


@contextlib.contextmanager
def stop_requests(seconds: float | None = None) -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT (Ctrl-C) or SIGTERM sets, or time; a second signal acts as usual."""
    requested = threading.Event()
    timer = threading.Timer(seconds or 0.0, requested.set)
    timer.daemon = True
    if seconds is not None:
        timer.start()
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in SIGNALS if main}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(*_: object) -> None:
        requested.set()
        restore()

    for number in before:
        signal.signal(number, handle)
    try:
        yield requested
    finally:
        timer.cancel()
        restore()
