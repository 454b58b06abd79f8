"""Conversions to many sizes, tried one after another on a task, with and without calibration and training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.conversion.analysis import model_costs
from headjax.conversion.calibration import Calibration, calibrate
from headjax.conversion.model import convert
from headjax.core.progress import Progress, silent
from headjax.data.examples import Padded
from headjax.data.stream import LengthBuckets
from headjax.evaluation.measures import Outcome, Outcomes
from headjax.evaluation.paired import RESAMPLES, paired_test
from headjax.evaluation.selection import selection_of
from headjax.evaluation.task import Evaluation, Task, measure_task
from headjax.heads.significance import Comparison
from headjax.models.config import Batch, Output
from headjax.models.model import Model
from headjax.models.tasks.text import sentence_embeddings
from headjax.training.distillation import distill
from headjax.training.objectives import Distillation

BUCKETS = (32, 64)
"""Lengths that texts are padded to where none are given, beside the longest one's."""

VARIANTS = ("plain", "calibrated", "fine-tuned")
"""Variants of a conversion, each of which starts from the one before."""


class Trial(NamedTuple):
    """A conversion and its effect on the model.

    Attributes:
        to: the target as text.
        variant: `plain`, `calibrated`, or `fine-tuned`: calibrated and then trained.
        parameters: of the converted model.
        relative_error, value_error, logit_error: root mean squares of the layers' (`LayerError`); of the conversion,
            before any training.
        cosine: mean cosine between the embeddings of the same text, or of each text of a pair, by this model and by the
            original. An embedding is the mean of the last hidden states.
        metrics: the task's, by name.
        cache: numbers that all layers keep for a token while decoding; 0 without a decoder.
        against_original: paired test of the headline against the original's, on all evaluation examples.
    """

    to: str
    variant: str
    parameters: int
    relative_error: float
    value_error: float
    logit_error: float
    cosine: float
    metrics: Mapping[str, float]
    cache: int = 0
    against_original: Mapping[str, float] | None = None


@dataclasses.dataclass(frozen=True)
class Trials:
    """A model and a task to try conversions on.

    Attributes:
        model: the original, with an output for the task.
        task: the task; short texts are read in short batches.
        calibration: batches and the moments of the original's inputs.
        own: the original's evaluation, the embeddings among its outcomes.
        test, against: name of the paired test, and the test of other outcomes against the original's.
        fine_tuning: how converted models are trained; None trains none.
        limit: number of the task's examples to evaluate on, the first ones; 0 is all.
        batch_size: examples of a batch, to evaluate and to train.
        buckets: lengths that texts are padded to, besides the longest one's.
    """

    model: Model
    task: Task
    calibration: Calibration
    own: Evaluation
    test: str
    against: Callable[[Outcomes], Comparison]
    fine_tuning: Distillation | None
    limit: int
    batch_size: int
    buckets: tuple[int, ...]

    def original(self) -> Trial:
        """Return the original as a trial."""
        cache = cache_of(self.model)
        return Trial("original", "plain", self.model.num_parameters, 0.0, 0.0, 0.0, 1.0, self.own.metrics, cache)

    def run(self, to: str, variant: str, seed: int = 0) -> Trial:
        """Convert and evaluate.

        Raises:
            HeadjaxError: a target that does not exist or that a layer cannot become.
        """
        converted = convert(self.model, to, batches=self.calibration, plain=variant == "plain", seed=seed)
        model, errors = converted.model, converted.errors
        if variant == "fine-tuned" and self.fine_tuning is not None:
            batches = self.task.train_batches(self.batch_size, seed=seed)
            model = distill(model, self.model, batches, self.fine_tuning).model
        chosen: Any = {"limit": self.limit, "batch_size": self.batch_size, "buckets": self.buckets, "more": EMBEDDING}
        found = measure_task(model, self.task, **chosen)
        return Trial(
            to=to,
            variant=variant,
            parameters=model.num_parameters,
            relative_error=_root_mean_square([error.relative_error for error in errors]),
            value_error=_root_mean_square([error.value_error or 0.0 for error in errors]),
            logit_error=_root_mean_square([error.logit_error or 0.0 for error in errors]),
            cosine=_mean_cosine(self.own.outcomes["embedding"], found.outcomes["embedding"]),
            metrics=found.metrics,
            cache=cache_of(model),
            against_original=self.against(_judged(found.outcomes))._asdict(),
        )


def prepare_trials(
    model: Model,
    task: Task,
    *,
    calibration: int,
    selection: Task | None = None,
    fine_tuning: Distillation | None = None,
    limit: int = 0,
    batch_size: int = 32,
    buckets: Sequence[int] = BUCKETS,
    progress: Progress = silent,
) -> Trials:
    """Evaluate the original and collect the moments of its layers' inputs.

    Args:
        model: the model.
        task: the task; its training examples train, the others are evaluated on.
        calibration: number of batches to calibrate on.
        selection: the task whose `batches` give the examples to calibrate on; None is the training examples of `task`
            (`headjax.evaluation.selection`).
        fine_tuning: how converted models are trained; None trains none.
        limit: number of the task's first examples to evaluate on; 0 is all.
        batch_size: examples of a batch, to calibrate, evaluate and train.
        buckets: lengths that texts are padded to, besides the longest one's.
        progress: shows the advance.

    Raises:
        HeadjaxError: the model's output is for another task.
        DataError: the task has no examples to train on.
    """
    buckets = tuple(buckets)
    calibrated = (selection or selection_of(task)).first_batches(calibration, batch_size, buckets=buckets)
    train: Any = task.data.train
    if isinstance(train, Padded):
        train = LengthBuckets(train, buckets)
    task = dataclasses.replace(task, data=task.data._replace(train=train))
    model = task.fit(model)
    with progress("calibrating", len(calibrated), "batch") as bar:
        moments = calibrate(model, calibrated, bar)
    count = task.count_batches(batch_size, limit=limit, buckets=buckets)
    with progress("evaluating the original", count, "batch") as bar:
        chosen: Any = {"limit": limit, "batch_size": batch_size, "buckets": buckets, "more": EMBEDDING}
        own = measure_task(model, task, **chosen, progress=bar)
    test = paired_test(_judged(own.outcomes), task.measure, RESAMPLES)
    return Trials(model, task, moments, own, *test, fine_tuning, limit, batch_size, buckets)


def cache_of(model: Model) -> int:
    """Return the numbers that all layers of a model keep for a token while decoding."""
    return sum(cost.cache for cost in model_costs(model.config, (1,)))


def _judged(outcomes: Outcomes) -> Outcomes:
    """Return the outcomes without embeddings, which no metric reads."""
    return {name: array for name, array in outcomes.items() if name != "embedding"}


def embeddings(output: Output, batch: Batch) -> jax.Array:
    """`[batch, texts, width]` float32: means of the last hidden states over a text's tokens.

    Two texts where rows hold pairs kept apart by `segment_ids`, else one.
    """
    if "segment_ids" in batch:
        return sentence_embeddings(output, batch)
    hidden = output.hidden.astype(jnp.float32)
    mask = batch.get("attention_mask")
    # An encoder-decoder's states belong to the labels, whose shape is another; all of them count.
    counted = jnp.ones(hidden.shape[:2]) if mask is None or mask.shape != hidden.shape[:2] else mask
    weights = jnp.asarray(counted, jnp.float32)[:, :, None]
    return (hidden * weights).sum(axis=1, keepdims=True) / jnp.maximum(weights.sum(axis=1, keepdims=True), 1.0)


EMBEDDING: tuple[tuple[str, Outcome], ...] = (("embedding", embeddings),)
"""The outcome that trials keep of every example, beside those of the task's measure."""


def _mean_cosine(one: np.ndarray, other: np.ndarray) -> float:
    norms = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return float(((one * other).sum(axis=-1) / np.maximum(norms, 1e-30)).mean())


def _root_mean_square(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def expand(text: str) -> list[str]:
    """Return `grouped:kv_heads=6/4/2` as one target for each size: `grouped:kv_heads=6`, `grouped:kv_heads=4`, ..."""
    head, separator, sizes = text.rpartition("=")
    return [f"{head}{separator}{size}" for size in sizes.split("/")]
