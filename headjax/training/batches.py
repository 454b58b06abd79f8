"""Batches of a run: training batches without end, with their position, and the evaluation on the validation split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from headjax.core.errors import DataError
from headjax.core.progress import Update
from headjax.core.tensors import Params
from headjax.data.stream import LengthBuckets, evaluation_batches, train_iterator
from headjax.data.task import TaskData
from headjax.evaluation.task import measure_batch, measure_of, reduce_batches
from headjax.mesh.distributed import process_share, put_batch, put_whole_batch
from headjax.models.config import Batch, ModelConfig
from headjax.models.inputs import check_batch
from headjax.models.model import Model
from headjax.training.config import TrainConfig


class Feed:
    """Training batches without end, spread over the mesh. Every checkpoint holds its position."""

    def __init__(self, config: TrainConfig, model: ModelConfig, data: TaskData, mesh: Mesh) -> None:
        self._model, self._mesh = model, mesh
        self._data = data.info.get("data")
        share = process_share(mesh)
        self._iterator = train_iterator(data.train, config.batch_size, config.seed, share=share, threads=data.threads)

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> dict[str, jax.Array]:
        return put_batch(check_batch(self._model, next(self._iterator)), self._mesh)

    @property
    def position(self) -> dict[str, Any]:
        """Position of the next batch, and the data that it is a position in, as JSON data."""
        return {"iterator": self._iterator.get_state(), "data": self._data}

    def go_to(self, position: dict[str, Any], workdir: Path) -> None:
        """Go on from the position in a checkpoint of this workdir."""
        if position["data"] != self._data:
            raise DataError(f"config.data: the text is not the one that {workdir} was trained on so far")
        self._iterator.set_state(position["iterator"])


Validation = Callable[[Params, Update], Mapping[str, float]]
"""From parameters to metrics on the validation split, by name; told of every batch."""


def validation(config: TrainConfig, model: ModelConfig, mesh: Mesh, data: TaskData) -> Validation:
    """Return the evaluation of a run's parameters: by its data's own measure, else by loss and perplexity."""
    if len(data.validation) == 0:
        raise DataError("config.data: the validation split is empty")
    measure = measure_of(data)
    fitted = model if measure is None else measure.fit(model)

    def evaluate(params: Params, progress: Update) -> Mapping[str, float]:
        found: list[Any] = []
        for batch in validation_batches(data, config.batch_size):
            placed = put_whole_batch(check_batch(model, batch), mesh)
            found.append(measure_batch(Model(fitted, params), measure, config.compute, placed, mesh=mesh))
            progress(len(found), {})
        return reduce_batches(measure, found).metrics

    return evaluate


def validation_batches(data: TaskData, batch_size: int) -> Iterable[Batch]:
    """Return the validation split in batches, padded as little as the training split is."""
    buckets = data.train.bounds if isinstance(data.train, LengthBuckets) else ()
    return evaluation_batches(data.validation, batch_size, buckets)
