"""The batches of a run, and where in them it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from headjax.core.errors import DataError
from headjax.data.stream import train_iterator
from headjax.data.task import TaskData
from headjax.mesh.distributed import process_share
from headjax.models.config import ModelConfig
from headjax.models.inputs import check_batch
from headjax.training.config import TrainConfig
from headjax.training.step import put_batch


class Feed:
    """Training batches without end, spread over the mesh. Its position belongs into every checkpoint."""

    def __init__(self, config: TrainConfig, model: ModelConfig, data: TaskData, mesh: Mesh) -> None:
        self._model, self._mesh = model, mesh
        self._data = data.info.get("data")
        self._iterator = train_iterator(data.train, config.batch_size, config.seed, share=process_share(mesh))

    def __next__(self) -> dict[str, jax.Array]:
        return put_batch(check_batch(self._model, next(self._iterator)), self._mesh)

    @property
    def position(self) -> dict[str, Any]:
        """Where the next batch is, and in which data, as JSON data."""
        return {"iterator": self._iterator.get_state(), "data": self._data}

    def go_to(self, position: dict[str, Any], workdir: Path) -> None:
        """Goes on from the position in a checkpoint of this workdir.

        Raises:
            DataError: it is one in other data.
        """
        if position["data"] != self._data:
            raise DataError(f"config.data: the text is not the one that {workdir} was trained on so far")
        self._iterator.set_state(position["iterator"])
