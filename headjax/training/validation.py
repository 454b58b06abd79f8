"""Evaluation on the validation split, as a training run does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from jax.sharding import Mesh

from headjax.core.errors import DataError
from headjax.core.tensors import Params
from headjax.data.examples import Padded
from headjax.data.stream import LengthBuckets, batches_by_length, evaluation_batches
from headjax.data.task import TaskData
from headjax.evaluation.evaluate import evaluate_batches
from headjax.evaluation.task import measure_of, reduce_batches
from headjax.models.config import Batch, ModelConfig
from headjax.models.inputs import check_batch
from headjax.training.config import TrainConfig
from headjax.training.step import evaluation_step, measuring_step, put_whole_batch

Validation = Callable[[Params], Mapping[str, float]]
"""From parameters to metrics on the validation split, by name."""


def validation(config: TrainConfig, model: ModelConfig, mesh: Mesh, data: TaskData) -> Validation:
    """The evaluation of a run's parameters: by the measure of its data, by loss and perplexity where they have none.

    Raises:
        DataError: the validation split is empty.
    """
    if len(data.validation) == 0:
        raise DataError("config.data: the validation split is empty")

    def batches() -> Iterable[Batch]:
        return (
            put_whole_batch(check_batch(model, batch), mesh) for batch in validation_batches(data, config.batch_size)
        )

    measure = measure_of(data)
    if measure is None:
        step = evaluation_step(model, mesh, compute=config.compute)
        return lambda params: evaluate_batches(step, params, batches())
    measuring = measuring_step(measure.fit(model), measure, mesh, compute=config.compute)
    return lambda params: reduce_batches(measure, [measuring(params, batch) for batch in batches()]).metrics


def validation_batches(data: TaskData, batch_size: int) -> Iterable[Batch]:
    """The validation split, padded as little as the training split is."""
    if isinstance(data.train, LengthBuckets) and isinstance(data.validation, Padded):
        return batches_by_length(data.validation, batch_size, data.train.bounds)
    return evaluation_batches(data.validation, batch_size)
