"""The configuration of a training run: what a config file's `ConfigDict` must hold."""

from __future__ import annotations

import dataclasses
from typing import Any

from ml_collections import ConfigDict

from headjax.data.task import DataConfig
from headjax.errors import require, require_positive
from headjax.models.compute import Compute
from headjax.models.recipes import Recipe
from headjax.parallel.mesh import MeshConfig
from headjax.serialize import from_data
from headjax.training.optimizer import Optimizer

EXECUTION_FIELDS = frozenset(
    {"mesh", "log_every", "evaluate_every", "checkpoint_every", "keep_checkpoints", "tensorboard"}
)
"""Fields that may differ when a run is continued: none of them changes what is computed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run.

    Attributes:
        model: recipe of the model.
        data: what it is trained on.
        batch_size: examples per step, over all devices.
        steps: number of optimizer steps.
        optimizer: optimizer and learning-rate schedule.
        compute: type, attention kernel and rematerialisation.
        mesh: how devices are arranged.
        seed: of initialisation, shuffling and dropout.
        log_every: steps between metric records.
        evaluate_every: steps between evaluations; 0 evaluates only at the end.
        checkpoint_every: steps between checkpoints.
        keep_checkpoints: how many of the latest are kept.
        tensorboard: whether to write TensorBoard files besides JSON lines.
    """

    model: Recipe
    data: DataConfig
    batch_size: int
    steps: int
    optimizer: Optimizer
    compute: Compute = Compute()
    mesh: MeshConfig = MeshConfig()
    seed: int = 0
    log_every: int = 20
    evaluate_every: int = 0
    checkpoint_every: int = 500
    keep_checkpoints: int = 2
    tensorboard: bool = True

    def __post_init__(self) -> None:
        require_positive(self, "batch_size", "steps", "log_every", "checkpoint_every", "keep_checkpoints")
        require(self.evaluate_every >= 0, "evaluate_every", f"must not be negative, got {self.evaluate_every}")
        require(self.seed >= 0, "seed", f"must not be negative, got {self.seed}")


def train_config(config: ConfigDict | dict[str, Any]) -> TrainConfig:
    """The run that a config file describes.

    Raises:
        ConfigError: an unknown or missing field, or a value it cannot have; the message starts with the field's path.
    """
    data = config.to_dict() if isinstance(config, ConfigDict) else config
    return from_data(TrainConfig, data)
