"""The configuration of a training run: the fields of a config file's `ConfigDict`, with optimizers and schedules."""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import Any, Literal

import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from headjax.core.errors import require
from headjax.core.fields import Checked, Count, NotNegative, Positive, Rate, Share, Size, Steps
from headjax.core.serialize import from_data, kind
from headjax.core.tensors import Tensors, map_tensors
from headjax.data.config import DataConfig
from headjax.initialization import ModelSource
from headjax.mesh.mesh import MeshConfig, Prng
from headjax.mesh.rules import ShardingConfig
from headjax.models.config import ModelConfig
from headjax.nn.block import Compute
from headjax.training.step import Objective, Trainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule(Checked, abc.ABC):
    """A learning rate by step: linear warm-up from 0 to `peak`, then the kind's own curve.

    Attributes:
        peak: the highest learning rate.
        warmup_steps: steps of linear warm-up.
    """

    peak: Positive
    warmup_steps: Count = 0

    def build(self, steps: int) -> optax.Schedule:
        """The learning rate as a function of the step."""
        after = self.after_warmup(max(steps - self.warmup_steps, 1))
        if self.warmup_steps == 0:
            return after
        warmup = optax.linear_schedule(0.0, self.peak, self.warmup_steps)
        return optax.join_schedules([warmup, after], [self.warmup_steps])

    @abc.abstractmethod
    def after_warmup(self, steps: int) -> optax.Schedule:
        """The learning rate after the warm-up, which `steps` steps remain."""


@kind("cosine")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Half a cosine down to `final` times the peak.

    Attributes:
        final: the last learning rate as a share of the peak.
    """

    final: Share = 0.1

    def after_warmup(self, steps: int) -> optax.Schedule:
        return optax.cosine_decay_schedule(self.peak, steps, alpha=self.final)


@kind("linear_decay")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearDecay(Schedule):
    """A straight line down to `final` times the peak (BERT: 0).

        >>> rate = headjax.LinearDecay(peak=1.0).build(steps=10)
        >>> [round(float(rate(step)), 3) for step in (0, 5, 10)]
        [1.0, 0.5, 0.0]

    Attributes:
        final: the last learning rate as a share of the peak.
    """

    final: Share = 0.0

    def after_warmup(self, steps: int) -> optax.Schedule:
        return optax.linear_schedule(self.peak, self.final * self.peak, steps)


@kind("inverse_square_root")
@dataclasses.dataclass(frozen=True, kw_only=True)
class InverseSquareRoot(Schedule):
    """peak * sqrt(warmup_steps / step) (Vaswani et al. 2017, section 5.3)."""

    def after_warmup(self, steps: int) -> optax.Schedule:
        start = max(self.warmup_steps, 1)

        def rate(step: Any) -> Any:
            # Optax evaluates every part of a joined schedule at every step, this one from -warmup_steps on.
            return self.peak * (start / (start + jnp.maximum(step, 0))) ** 0.5

        return rate


@kind("constant_rate")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ConstantRate(Schedule):
    """The peak throughout.

    >>> headjax.ConstantRate(peak=1e-3).build(steps=10)(5)
    0.001
    """

    def after_warmup(self, steps: int) -> optax.Schedule:
        return optax.constant_schedule(self.peak)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(Checked, abc.ABC):
    """Base of the optimizers, which have Adam's moments.

    Attributes:
        schedule: learning rate by step.
        clip_norm: the gradient's global norm is scaled down to this; 0 leaves it alone.
        b1, b2: decay rates of the moments.
        epsilon: added to the root of the second moment.
    """

    schedule: Schedule
    clip_norm: NotNegative = 1.0
    b1: Rate = 0.9
    b2: Rate = 0.98
    epsilon: Positive = 1e-8

    def build(self, tensors: Tensors, steps: int) -> optax.GradientTransformation:
        """The transformation from gradients to updates, for parameters declared as `tensors`."""
        clip = optax.clip_by_global_norm(self.clip_norm) if self.clip_norm > 0 else optax.identity()
        return optax.chain(clip, self.transformation(tensors, self.schedule.build(steps)))

    def check(self, steps: int) -> None:
        """Raise `ConfigError` unless the warm-up ends within the run's steps."""
        warmup = self.schedule.warmup_steps
        require(warmup <= steps, "optimizer.schedule.warmup_steps", f"is {warmup}, and the run has {steps} steps")

    @abc.abstractmethod
    def transformation(self, tensors: Tensors, rate: optax.Schedule) -> optax.GradientTransformation:
        """The transformation after clipping."""


@functools.lru_cache(maxsize=8)
def build_optimizer(optimizer: Optimizer, model: ModelConfig, steps: int) -> optax.GradientTransformation:
    """Return the optimizer's transformation of a model's gradients: the same for equal arguments, so compiled once."""
    return optimizer.build(model.tensors(), steps)


@kind("adamw")
@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019); biases and norms are not decayed.

        >>> headjax.AdamW(schedule=headjax.ConstantRate(peak=1e-3)).weight_decay
        0.01

    Attributes:
        weight_decay: multiplies the learning rate and the weight.
    """

    weight_decay: NotNegative = 0.01

    def transformation(self, tensors: Tensors, rate: optax.Schedule) -> optax.GradientTransformation:
        return optax.adamw(rate, self.b1, self.b2, self.epsilon, weight_decay=self.weight_decay, mask=decayed(tensors))


@kind("radam")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RAdam(Optimizer):
    """Rectified Adam (Liu et al. 2020), without weight decay."""

    def transformation(self, tensors: Tensors, rate: optax.Schedule) -> optax.GradientTransformation:
        return optax.radam(rate, self.b1, self.b2, self.epsilon)


def decayed(tensors: Tensors) -> dict[str, Any]:
    """True for every weight, False for biases and norms, as each tensor declares."""
    return map_tensors(lambda _, tensor: tensor.decay, tensors)


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
