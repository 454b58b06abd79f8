"""Tasks, which are examples with their measure, and the evaluation of a model on a task or on plain batches."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from headjax.core.errors import DataError, HeadjaxError, require
from headjax.core.modules import arrays as arrays_of
from headjax.core.programs import evict_compiled
from headjax.core.progress import Update
from headjax.core.tensors import Params, require_finite
from headjax.core.timing import finished
from headjax.data.examples import ExampleSource, Padded, TaskData, by_length, subset
from headjax.data.stream import evaluation_batches, train_iterator
from headjax.evaluation import measures, structured
from headjax.evaluation.measures import Measure, Outcomes
from headjax.heads.agreement import LOSSES, in_parts
from headjax.mesh.mesh import on_automatic_axes, replicated
from headjax.models.config import Batch, Loss, Output
from headjax.models.inputs import device_batch
from headjax.models.model import Model
from headjax.nn.block import Compute, ForwardOptions

if TYPE_CHECKING:
    import grain

BATCH_SIZE = 16

MEASURES: Mapping[str, Callable[..., Measure]] = {
    "classes": measures.Classes,
    "entities": structured.Entities,
    "language_modelling": measures.LanguageModelling,
    "masked_and_next": measures.MaskedAndNext,
    "numbers": measures.Numbers,
    "ranking": structured.Ranking,
    "several_labels": structured.SeveralLabels,
    "similarities": measures.Similarities,
    "spans": structured.Spans,
}


def measure_of(data: TaskData) -> Measure | None:
    """Return the measure of data; None for the loss and the perplexity alone."""
    return None if data.measured is None else MEASURES[data.measured.measure](**data.measured.arguments)


@dataclasses.dataclass(frozen=True)
class Task:
    """A task: examples with their measure.

        >>> headjax.load_task("LICENSE", headjax.demo_model(), length=64).count()
        11

    Attributes:
        name: name or file of the task.
        data: its examples.
        measure: its metrics, computed from a model's outputs.
        part: name of the examples that `batches` gives if they are not the task's own validation examples.
    """

    name: str
    data: TaskData
    measure: Measure
    part: str = ""

    @property
    def split(self) -> str:
        """Name of the examples that `batches` gives: `validation`, `all` if the task has no others, or `part`."""
        return self.part or ("validation" if len(self.data.train) else "all")

    @property
    def labelled(self) -> bool:
        """Whether examples have labels, by which models are measured."""
        return bool(self.data.info.get("labelled", True))

    def count(self, limit: int = 0) -> int:
        """Return the number of examples that `batches` gives."""
        return min(limit or len(self.data.validation), len(self.data.validation))

    @property
    def primary_metric(self) -> str:
        """Name of the task's main metric."""
        return self.measure.primary_metric

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher primary metric is better."""
        return self.measure.higher_is_better

    def fit(self, model: Model) -> Model:
        """Return the model with an output for the task; one for another task is a `HeadjaxError`."""
        return model.replace(config=self.measure.fit(model.config))

    def batches(
        self, batch_size: int = BATCH_SIZE, *, limit: int = 0, buckets: Sequence[int] = ()
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield batches of the first `limit` examples to evaluate on; 0 is all.

        `buckets` are lengths into which examples are sorted, so that short ones are padded less. One compilation each;
        the order of the examples is then by bucket. A batch size below one or a negative limit is a `ConfigError`.
        """
        return evaluation_batches(self._first(limit), batch_size, buckets)

    def count_batches(self, batch_size: int = BATCH_SIZE, *, limit: int = 0, buckets: Sequence[int] = ()) -> int:
        """Return the number of batches that `batches` gives."""
        require(batch_size >= 1, "batch_size", f"must be at least 1, got {batch_size}")
        return sum(-(-len(part) // batch_size) for part in by_length(self._first(limit), buckets))

    def _first(self, limit: int) -> ExampleSource:
        require(limit >= 0, "limit", f"must not be negative, got {limit}")
        return subset(self.data.validation, np.arange(self.count(limit))) if limit else self.data.validation

    def sample(
        self, count: int, batch_size: int = BATCH_SIZE, *, seed: int = 0, buckets: Sequence[int] = ()
    ) -> list[dict[str, np.ndarray]]:
        """Return batches of `count` training examples (all if there are no more) drawn without replacement by a seed.

        Heads are scored and conversions calibrated on them. A task without training examples is a `DataError`.
        """
        require(count >= 1, "count", f"must be at least 1, got {count}")
        source = self._train()
        drawn = np.random.default_rng(seed).permutation(len(source))[:count]
        return list(evaluation_batches(subset(source, drawn), batch_size, buckets))

    def train_batches(
        self, batch_size: int = BATCH_SIZE, *, seed: int = 0, buckets: Sequence[int] = ()
    ) -> grain.DatasetIterator:
        """Return endless training batches in the order of a seed, padded to `buckets`; see `train_iterator`."""
        source = self._train()
        if buckets and isinstance(source, Padded):
            source = dataclasses.replace(source, bounds=tuple(buckets))
        return train_iterator(source, batch_size, seed)

    def _train(self) -> ExampleSource:
        if len(self.data.train) == 0:
            raise DataError(f"{self.name}: it has no examples to train on")
        return self.data.train


class Evaluation(NamedTuple):
    """A model on a task."""

    metrics: dict[str, float]
    examples: int
    outcomes: Outcomes
    notes: tuple[str, ...] = ()


@on_automatic_axes
def evaluate(model: Model, batches: Iterable[Batch], *, compute: Compute = Compute()) -> Mapping[str, float]:
    """Return the model's loss on batches with labels.

        >>> model = headjax.demo_model()
        >>> batch = headjax.text_batch(model.tokenizer, ["for name in names:"])
        >>> sorted(headjax.evaluate(model, [batch]))
        ['loss', 'perplexity', 'targets']

    Args:
        batches: arrays by Hugging Face's names; equal shapes compile once.
        compute: precision and attention implementation.

    Returns:
        `loss`, the mean over all targets of all batches in nats, `perplexity` = exp(loss), and `targets`, their number.

    Raises:
        DataError: no targets, or a token or label that the model does not have.
        HeadjaxError: a loss is not finite; the message names the batch.
    """
    placed = (device_batch(model.config, batch) for batch in batches)
    measured = [measure_batch(model, None, compute, batch) for batch in placed]
    return reduce_batches(None, measured, params=arrays_of(model)).metrics


@on_automatic_axes
def evaluate_task(model: Model, task: Task, limit: int = 0, **options: Any) -> dict[str, float]:
    """Return the model's loss and the task's metrics; `options` are those of `measure_task`.

    >>> model = headjax.demo_model()
    >>> task = headjax.load_task("LICENSE", model, length=64)
    >>> sorted(headjax.evaluate_task(model, task, limit=4))
    ['bits_per_byte', 'loss', 'perplexity', 'word_perplexity']
    """
    return measure_task(model, task, limit, **options).metrics


@on_automatic_axes
def measure_task(
    model: Model,
    task: Task,
    limit: int = 0,
    *,
    batch_size: int = BATCH_SIZE,
    buckets: Sequence[int] = (),
    compute: Compute = Compute(),
    forward: Callable[[Batch], Output] | None = None,
    progress: Update | None = None,
) -> Evaluation:
    """Return the metrics and outcomes of a model on a task; batches of equal shapes share one compilation.

        >>> model = headjax.demo_model()
        >>> task = headjax.load_task("LICENSE", model, length=64)
        >>> result = headjax.measure_task(model, task, limit=4)
        >>> result.examples, sorted(result.metrics), sorted(result.outcomes)
        (4, ['bits_per_byte', 'loss', 'perplexity', 'word_perplexity'], ['loss', 'targets'])

    Args:
        limit: number of examples, from the start; 0 is all.
        buckets: see `Task.batches`.
        compute: precision and attention implementation.
        forward: computes the model's outputs in its place, as onnxruntime does.
        progress: called after every batch with the number of batches done.

    Raises:
        HeadjaxError: the model's output is for another task, or a loss or weight is not finite.
        DataError: no targets, or a token or label that the model does not have.
    """
    evict_compiled()
    model = task.fit(model)

    def measured(batch: Batch) -> tuple[Loss, dict[str, jax.Array]]:
        parts = [batch] if forward is not None else in_parts(model, [batch], LOSSES)
        if len(parts) == 1:
            whole = device_batch(model.config, batch)
            return measure_batch(model, task.measure, compute, whole, None if forward is None else forward(whole))
        placed = (device_batch(model.config, part) for part in parts)
        results = list(finished((measure_batch(model, task.measure, compute, part) for part in placed), None))
        return jax.tree.map(lambda *each: jnp.concatenate(each), *results)

    batches = map(measured, task.batches(batch_size, limit=limit, buckets=buckets))
    return reduce_batches(task.measure, list(finished(batches, progress)), task.name, arrays_of(model))


@functools.partial(jax.jit, static_argnames=("measure", "compute", "mesh"))
def measure_batch(
    model: Model,
    measure: Measure | None,
    compute: Compute,
    batch: Batch,
    output: Output | None = None,
    *,
    mesh: Mesh | None = None,
) -> tuple[Loss, dict[str, jax.Array]]:
    """Return one batch's losses and a measure's outcomes, jitted once for equal shapes; the output may be given."""
    # Attention kernels that XLA cannot partition spread themselves over the mesh they find here.
    with contextlib.nullcontext() if mesh is None else jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        output = model.forward(batch, ForwardOptions(compute=compute)) if output is None else output
        outcomes = {} if measure is None else dict(measure.outcomes(output, batch))
        results = model.losses(output, batch, smoothed=False), outcomes
    return results if mesh is None else jax.lax.with_sharding_constraint(results, replicated(mesh))


def reduce_batches(
    measure: Measure | None,
    batches: Sequence[tuple[Loss, Mapping[str, Any]]],
    name: str = "evaluation",
    params: Params | None = None,
) -> Evaluation:
    """Return the metrics of the losses and outcomes of every batch; examples without targets do not count.

    With the model's `params` a loss that is not finite is an error, which names them if they are the cause.
    """
    if not batches:
        raise DataError(f"{name}: it has no examples")
    fetched = jax.device_get(list(batches))
    named = [{"loss": loss.total, "targets": loss.weight, **values} for loss, values in fetched]
    for number, batch in enumerate(named):
        bad = batch["loss"][~np.isfinite(batch["loss"])]
        if params is not None and bad.size:
            require_finite(params)
            raise HeadjaxError(f"evaluation: the loss of batch {number}, counted from 0, is {bad[0]}")
    joined = {key: np.concatenate([batch[key] for batch in named]).astype(np.float64) for key in named[0]}
    present = joined["targets"] > 0
    if not present.any():
        raise DataError(f"{name}: no example in it has a target")
    outcomes = {key: column[present] for key, column in joined.items()}
    notes = () if measure is None else measure.notes(outcomes)
    return Evaluation(metrics_of(measure, outcomes), len(outcomes["loss"]), outcomes, notes)


def metrics_of(measure: Measure | None, outcomes: Outcomes) -> dict[str, float]:
    """Return the mean `loss` per target, and a measure's metrics, see `reduce_batches`."""
    targets = float(outcomes["targets"].sum())
    loss = float(outcomes["loss"].sum()) / targets
    if measure is None:
        return {"loss": loss, "perplexity": measures.perplexity(loss), "targets": targets}
    return {"loss": loss, **measure.metrics(outcomes)}
