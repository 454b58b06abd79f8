"""Duties after each training step: records, checkpoints, evaluations, and the end of a run that diverges."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import optax
from jax.sharding import Mesh

from headjax.core import history
from headjax.core.progress import Progress
from headjax.core.tensors import Params
from headjax.data.task import TaskData
from headjax.mesh.distributed import Vote, on_this_process
from headjax.models.config import ModelConfig
from headjax.models.model import Model
from headjax.training.batches import Feed, Validation
from headjax.training.checkpoints import Checkpoints
from headjax.training.config import TrainConfig
from headjax.training.recording import Recorder
from headjax.training.state import TrainState, abstract_state
from headjax.training.step import StepMetrics
from headjax.training.stopping import StopRequest
from headjax.training.workdir import BestModel


@dataclasses.dataclass(frozen=True)
class Training:
    """The fixed parts of a training run, built once from its config."""

    config: TrainConfig
    model: ModelConfig
    mesh: Mesh
    data: TaskData
    optimizer: optax.GradientTransformation
    evaluate: Validation
    files: Mapping[str, bytes]

    def target(self) -> TrainState:
        """Return shapes, types and places of the state, onto which checkpoints are restored."""
        return abstract_state(self.model, self.optimizer, self.mesh, self.config.sharding)


class Keeper:
    """Duties after each step of a run: records, checkpoints, evaluations, and the end."""

    def __init__(
        self,
        run: Training,
        past: tuple[Mapping[str, Any], ...],
        feed: Feed,
        checkpoints: Checkpoints,
        recorder: Recorder,
        best: BestModel | None,
        stop: StopRequest,
        progress: Progress,
        first: int,
    ) -> None:
        self._run, self._past, self._feed = run, past, feed
        self._checkpoints, self._recorder, self._best, self._progress = checkpoints, recorder, best, progress
        self._stop, self._stop_wanted, self._first = stop, Vote(run.mesh), first
        self.diverged: str | None = None

    def __call__(self, number: int, state: TrainState, measured: StepMetrics) -> bool:
        """Keep a step; return whether the run ends here, see `AfterStep`."""
        config, recorder = self._run.config, self._recorder
        # A stop is voted on once a step: a signal from here on is for the next one.
        ends = self._stop_wanted(self._stop.requested) or number == config.steps
        records = ends or number == self._first or number % config.log_every == 0
        saves = ends or number % config.checkpoint_every == 0
        diverged = why_diverged(number, measured, config.diverged_above) if saves or records else None
        if records or diverged is not None:
            recorder.record(number, measured)
        if diverged is not None:
            self._diverge(number, diverged)
            return True
        if saves:
            self._checkpoints.save(number, state, self._feed.position)
            recorder.settle()
        # The end of a run has an evaluation of its own; one that is stopped here evaluates when it goes on.
        if not ends and evaluates(config, number):
            self.evaluate(number, state.params)
        return ends or self.diverged is not None

    def evaluate(self, number: int, params: Params) -> Mapping[str, float]:
        """Evaluate the parameters after a step and record the metrics; without a finite loss the run has diverged.

        Such a step's checkpoint is deleted: a run must not continue from it.
        """
        with self._progress("evaluating", 0, "batch") as bar:
            found = self._run.evaluate(params, bar)
        loss = found.get("loss", 0.0)
        if self._best is not None and math.isfinite(loss):
            self._best.offer(number, found, lambda: trained(self._run, self._past, params, number, found))
        self._recorder.evaluated(number, found)
        if not math.isfinite(loss):
            self._checkpoints.discard(number)
            self._diverge(number, f"the validation loss of step {number} is {loss}")
        return found

    def _diverge(self, number: int, reason: str) -> None:
        self._recorder.diverged(number)
        self.diverged = f"{reason}; {self._checkpoints.describe_latest()}"


def evaluates(config: TrainConfig, step: int) -> bool:
    """Return whether parameters are evaluated after a step that is not the last."""
    return config.evaluate_every > 0 and step % config.evaluate_every == 0


def why_diverged(step: int, measured: StepMetrics, limit: float | None) -> str | None:
    """Return the reason for which a step's metrics mean that the run has diverged, in a line; None if they do not.

    The loss is that before the step; a gradient that is not finite has made the parameters after it unusable.
    """
    loss, norm = float(measured.loss), float(measured.gradient_norm)
    if not math.isfinite(loss):
        return f"the loss of step {step} is {loss}"
    if not math.isfinite(norm):
        return f"the gradient of step {step} has norm {norm}"
    if limit is not None and loss > limit:
        return f"the loss of step {step} is {loss:.4g}, more than diverged_above={limit:g}"
    return None


def trained(
    run: Training, past: tuple[Mapping[str, Any], ...], params: Params, steps: int, metrics: Mapping[str, float]
) -> Model:
    """Return the model after a number of steps, with the run in its history."""
    entry = history.entry("train", steps=steps, data=dict(run.data.info), metrics=dict(metrics))
    return Model(run.model, on_this_process(params, run.mesh), (*past, entry), run.data.tokenizer, run.files)
