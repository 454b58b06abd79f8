"""The configuration of a training run: the fields of a config file's `ConfigDict`."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from jax.sharding import Mesh
from ml_collections import ConfigDict

from headjax.core.fields import Count, Positive, Size, Steps
from headjax.core.serialize import from_data
from headjax.data.config import DataConfig
from headjax.initialization import ModelSource
from headjax.mesh.mesh import MeshConfig, Prng
from headjax.mesh.rules import ShardingConfig
from headjax.models.config import ModelConfig
from headjax.nn.state import Compute
from headjax.training.optimizer import Optimizer, build_optimizer
from headjax.training.step import Objective, Trainer

EXECUTION_FIELDS = {
    "mesh", "sharding", "compute.attention", "compute.remat", "compute.scan", "accumulate", "log_every",
    "evaluate_every", "checkpoint_every", "keep_checkpoints", "tensorboard", "diverged_above",
}  # fmt: skip
"""Fields that may differ when a run is continued: none of them changes the results, up to rounding and, for
`accumulate` (and for `mesh` where it is above 1 or `prng` is `rbg`), up to which activations dropout drops."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepConfig(ModelSource):
    """Fields that determine the compiled step of a run.

    Attributes:
        batch_size: examples per step, over all devices.
        optimizer: optimizer and learning-rate schedule.
        compute: type, attention kernel and rematerialisation.
        mesh: how devices are arranged.
        sharding: places of the state's arrays on them, beyond the rules of `headjax.mesh.rules`.
        accumulate: parts of each batch that are computed one after another, with the activations of one (gradient
            accumulation).
        prng: where dropout takes its random bits from, see `headjax.mesh.mesh`: `threefry2x32` drops the same on
            every mesh, `rbg` is cheaper on TPUs.
    """

    batch_size: Size
    optimizer: Optimizer
    compute: Compute = Compute()
    mesh: MeshConfig = MeshConfig()
    sharding: ShardingConfig = ShardingConfig()
    accumulate: Size = 1
    prng: Prng = "threefry2x32"

    def trainer(
        self, model: ModelConfig, mesh: Mesh, steps: int, seed: int = 0, objective: Objective | None = None
    ) -> Trainer:
        """Return the step of a model; equal configs that differ in the seed share compilations."""
        optimizer = build_optimizer(self.optimizer, model, steps)
        return Trainer(model, optimizer, mesh, self.compute, seed, objective, self.accumulate, self.sharding, self.prng)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(StepConfig):
    """A training run.

        >>> run = headjax.train_config(headjax.load_config("configs/quickstart.py"))
        >>> isinstance(run, headjax.TrainConfig), run.steps, run.batch_size
        (True, 400, 4)

    Attributes:
        data: what it is trained on.
        steps: number of optimizer steps.
        seed: of initialisation, shuffling and dropout.
        log_every: steps between metric records.
        evaluate_every: steps between evaluations; 0 evaluates only at the end.
        checkpoint_every: steps between checkpoints.
        keep_checkpoints: how many of the latest are kept.
        keep: weights of the finished model: of the `last` step, or of the evaluation with the `best` headline metric
            (`evaluate_every`; the end has one, too).
        tensorboard: whether to write TensorBoard files besides JSON lines.
        diverged_above: a training loss (in nats per target) above this stops the run as diverged, as one that is not
            finite always does; None is no limit.
    """

    data: DataConfig
    steps: Steps
    seed: Count = 0
    log_every: Size = 20
    evaluate_every: Count = 0
    checkpoint_every: Size = 500
    keep_checkpoints: Size = 2
    keep: Literal["last", "best"] = "last"
    tensorboard: bool = True
    diverged_above: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.optimizer.check(self.steps)


def train_config(config: ConfigDict | dict[str, Any]) -> TrainConfig:
    """The run that a config file describes.

    Raises:
        ConfigError: an unknown or missing field, or a value it cannot have; the message starts with the field's path.

        >>> headjax.train_config(headjax.load_config("configs/quickstart.py:steps=10")).steps
        10
    """
    return from_data(TrainConfig, config)
