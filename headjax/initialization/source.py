"""The source of a run's model: a fresh one or a model directory, and the changes made before training."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from headjax.conversion.deep import deep_config, deepen
from headjax.core.errors import CheckpointError, ConfigError, require, within
from headjax.core.fields import Checked, Count
from headjax.core.serialize import from_data
from headjax.initialization.initialization import Initialization
from headjax.models.config import ModelConfig
from headjax.models.directory import ModelFolder
from headjax.models.model import Model
from headjax.models.new_task import with_task
from headjax.models.tasks import TaskOutput


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSource(Checked):
    """The fields of a run about its model.

    Attributes:
        model: a fresh model.
        start: a model directory in its place: an imported, pruned or converted model to train further.
        task: a fresh output of `start` for this task; None keeps the output it has.
        deep: heads of each layer that the model's layers are split into (Liu et al. 2021), see
            `headjax.conversion.deep`; 0 leaves the layers as they are. Weights of `start` are handed on.
        initialization: how a fresh model starts; None draws what the model's tensors declare.
    """

    model: ModelConfig | None = None
    start: str = ""
    task: TaskOutput | None = None
    deep: Count = 0
    initialization: Initialization | None = None

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> ModelSource:
        """Return the source of the model of a run's config."""
        names = {field.name for field in dataclasses.fields(ModelSource)}
        return from_data(ModelSource, {name: value for name, value in run.items() if name in names})

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.model is not None or bool(self.start), "model", "missing; describe one, or name a directory in start"
        )
        require(self.model is None or not self.start, "start", "stands beside a model; a run has one or the other")
        require(
            self.task is None or bool(self.start), "task", "is a new output of start; set model.task of a fresh model"
        )
        fresh = self.initialization is None or not self.start
        require(fresh, "initialization", "is for fresh models, and this one has trained parameters")

    def architecture(self) -> ModelConfig:
        """Return the config of the model that the run trains; no array is read or made."""
        if self.model is not None:
            config = self.model
        else:
            with self._reading():
                config = ModelFolder(self.start).config
            config = config if self.task is None else with_task(Model(config, {}), self.task).config
        with within("config.deep"):
            config = deep_config(config, self.deep) if self.deep else config
        return config if self.initialization is None else self.initialization.configure(config)

    def trained(self, seed: int) -> Model | None:
        """Return the model of `start`, with the output that `task` asks for, drawn by a seed; None for a fresh one."""
        if not self.start:
            return None
        with self._reading():
            model = Model(*ModelFolder(self.start).read())
        model = model if self.task is None else with_task(model, self.task, seed=seed)
        with within("config.deep"):
            return deepen(model, self.deep) if self.deep else model

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn an error about a field of the directory's config into one about the directory."""
        try:
            yield
        except ConfigError as error:
            raise CheckpointError(str(error)) from None
