"""The source of a run's model, and initialisations that make deep models train: DeepNorm in closed form, and Admin."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from headjax.conversion.deep import deep_config, deepen
from headjax.core.errors import CheckpointError, ConfigError, DataError, require, within
from headjax.core.fields import Checked, Count, Size
from headjax.core.modules import arrays, declared
from headjax.core.serialize import from_data, kind
from headjax.core.tensors import Params, flatten
from headjax.mesh.mesh import replicated
from headjax.models.config import Batch, ModelConfig
from headjax.models.directory import ModelFolder
from headjax.models.model import Model
from headjax.models.new_task import with_task
from headjax.models.tasks import TaskOutput
from headjax.models.walk import LayerBlock, blocks_of
from headjax.nn.block import Compute, ForwardOptions, ResidualStep


class Setting(NamedTuple):
    """Conditions of a measurement."""

    batches: Sequence[Batch]  # on the mesh
    key: jax.Array  # of dropout
    mesh: Mesh
    compute: Compute = Compute()


class Initialization(Checked, abc.ABC):
    """Base of the initialisations: the architecture a model needs, its first weights, and measurements on data.

    Everything that a kind does not change stays as it is without an initialisation.
    """

    batches: int = 0
    """Number of training batches that `measure` needs."""

    @abc.abstractmethod
    def configure(self, config: ModelConfig) -> ModelConfig:
        """Return the architecture to train."""

    def draw(self, config: ModelConfig, key: jax.Array) -> Params:
        """Return fresh parameters of the configured architecture; may be traced."""
        return config.initialize(key)

    def measure(self, config: ModelConfig, params: Params, setting: Setting) -> tuple[Params, Mapping[str, Any]]:
        """Return the parameters adjusted to data, and the measured numbers for the model's history."""
        return params, {}


def require_post_norm(config: ModelConfig, why: str) -> None:
    """Raise `ConfigError` unless every layer is a plain post-norm one with weights of its own; `why` ends the line."""
    require(config.residual == "post_norm", "residual", f"is {config.residual}; {why} of post_norm layers")
    shared = getattr(config, "shared_layers", False)
    require(not shared, "shared_layers", f"{why} of layers with weights of their own")


def set_shortcuts(config: ModelConfig, params: Params, omega: Mapping[str, Any]) -> Params:
    """Return the parameters with these multipliers of the shortcuts."""
    network = Model(config, params)
    for name, stack in config.stacks().items():
        values = np.asarray(omega[name], np.float32).reshape(len(stack.layers), -1)
        for group in stack.groups:
            layers, multipliers = getattr(getattr(network, name), group.name), values[group.start : group.stop]
            for column, slot in enumerate(group.layer.residual_slots):
                shortcut = getattr(layers, slot).shortcut
                old = shortcut.get_raw_value()
                new = jnp.broadcast_to(multipliers[:, column, None], old.shape).astype(old.dtype)
                traced = isinstance(old, jax.core.Tracer)  # on no device yet
                shortcut.set_raw_value(new if traced else jax.device_put(new, old.sharding))
    return arrays(network)


def deep_norm_scales(config: ModelConfig) -> dict[str, tuple[float, float]]:
    """Return (alpha, beta) by stack, for N encoder layers and M decoder layers (Wang et al. 2022, table 1).

    Shortcuts are multiplied by alpha; values, outputs and feed-forward weights by beta, as they are drawn. A stack
    alone has alpha = (2 N)^(1/4), beta = (8 N)^(-1/4). In an encoder-decoder the encoder has
    alpha = 0.81 (N^4 M)^(1/16), beta = 0.87 (N^4 M)^(-1/16), the decoder alpha = (3 M)^(1/4), beta = (12 M)^(-1/4).
    """
    depths = {name: len(stack.layers) for name, stack in config.stacks().items()}
    if len(depths) == 1:
        return {name: ((2 * depth) ** 0.25, (8 * depth) ** -0.25) for name, depth in depths.items()}
    decoder = depths["decoder"]
    product = float(depths["encoder"]) ** 4 * decoder
    return {
        "encoder": (0.81 * product ** (1 / 16), 0.87 * product ** (-1 / 16)),
        "decoder": ((3 * decoder) ** 0.25, (12 * decoder) ** -0.25),
    }


@kind("deep_norm")
@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepNorm(Initialization):
    """DeepNorm (Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers", section 3).

    Post-norm layers become LN(alpha x + f(x)). Values, outputs and feed-forward weights are drawn as the model says
    (`xavier` in the paper) and multiplied by beta; see `deep_norm_scales`.
    """

    def configure(self, config: ModelConfig) -> ModelConfig:
        require_post_norm(config, "DeepNorm is an initialisation")
        alphas: dict[str, Any] = {
            config.STACKS[name]["alpha"]: alpha for name, (alpha, _) in deep_norm_scales(config).items()
        }
        return dataclasses.replace(config, residual="constant_post_norm", **alphas)

    def draw(self, config: ModelConfig, key: jax.Array) -> Params:
        network, scales = Model(config, config.initialize(key)), deep_norm_scales(config)
        for name, stack in config.stacks().items():
            _, beta = scales[name]
            for group in stack.groups:
                for path, weight in flatten(declared(getattr(getattr(network, name), group.name))).items():
                    # What scales the output of its sub-layer; biases and norms are not decayed.
                    adds = path.startswith("feed_forward/") or f"/{path}".endswith(("/value", "/output/kernel"))
                    if adds and weight.decay:
                        weight.set_raw_value(weight.get_raw_value() * beta)
        return arrays(network)


_SMALLEST = 0.5
"""The second omega of a stack whose input is about normalised is more than 1; of one with unscaled embeddings of
standard deviation 0.02 it is 0.03."""


@kind("admin")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Admin(Initialization):
    """Admin by profiling (Liu et al. 2020, "Understanding the Difficulty of Training Transformers", section 4.2).

    Post-norm layers become LN(omega_i * x + f_i(x)). In each stack, on one training batch with dropout,

        omega_1 = 1,    omega_(i+1)^2 = Var[omega_i * x_(i-1)] + Var[f_i(x_(i-1))]

    from the first sub-layer to the last, each computed with the omegas found before it, as the authors' code does it;
    since x_(i-1) is normalised, that is omega_(i+1)^2 = Var[x_0] + sum_(j<=i) Var[f_j]. The variance is over every
    number of the batch, `[batch, length, width]`. Each omega starts as a vector of one value and is learned.

    Attributes:
        batches: training batches to profile; omega^2 is the mean over them.
        exclude_padding: whether the variance is over tokens alone; the authors' includes padding.
    """

    batches: Size = 1
    exclude_padding: bool = False

    def configure(self, config: ModelConfig) -> ModelConfig:
        require_post_norm(config, "Admin is an initialisation")
        return dataclasses.replace(config, residual="scaled_post_norm")

    def measure(self, config: ModelConfig, params: Params, setting: Setting) -> tuple[Params, Mapping[str, Any]]:
        keys = jax.random.split(setting.key, len(setting.batches))
        profiles = [
            profile(config, params, batch, setting._replace(key=key), exclude_padding=self.exclude_padding)
            for batch, key in zip(setting.batches, keys, strict=True)
        ]
        squares = jax.tree.map(lambda *omegas: np.mean(np.square(omegas), axis=0), *profiles)
        omega = {name: np.sqrt(square) for name, square in squares.items()}
        history = {name: [round(value, 6) for value in values.tolist()] for name, values in omega.items()}
        return set_shortcuts(config, params, omega), {"omega": history}


def profile(
    config: ModelConfig, params: Params, batch: Batch, setting: Setting, *, exclude_padding: bool = False
) -> dict[str, np.ndarray]:
    """Return Admin's omega of every sub-layer, by stack, in the order of computation, by one jitted forward."""
    if any(array.shape[0] == 0 for array in batch.values()):
        raise DataError("batch: holds no examples to profile")

    run = _program(config, setting.mesh, setting.compute, exclude_padding)
    omega = {name: np.asarray(values) for name, values in run(params, batch, setting.key).items()}
    if not all(np.isfinite(values).all() for values in omega.values()):
        raise DataError("batch: has no finite variance to profile (no tokens but padding, or parameters not finite)")
    for name, values in omega.items():
        if values[1] < _SMALLEST:
            raise DataError(
                f"{name}: its input and first sub-layer have variance {values[1] ** 2:.2g}; Admin needs about one or "
                f"more, or it all but cuts the shortcuts. Normalise or scale the embeddings."
            )
    return omega


@functools.lru_cache(maxsize=2)
def _program(config: ModelConfig, mesh: Mesh, compute: Compute, exclude_padding: bool) -> Callable[..., Any]:
    """Return the jitted function from parameters, a batch and a dropout key to every sub-layer's omega, by stack."""

    def omegas(params: Params, batch: Batch, key: jax.Array) -> dict[str, jax.Array]:
        records_of = {name: [jnp.ones(())] for name in config.stacks()}

        def weigh(stack: str, joining: ResidualStep) -> jax.Array:
            mask, omega = joining.mask if exclude_padding else None, records_of[stack][-1]
            shortcut, output = omega.astype(joining.x.dtype) * joining.x, joining.f(joining.x)
            records_of[stack].append(jnp.sqrt(variance(shortcut, mask) + variance(output, mask)))
            weighed: jax.Array = joining.residual.norm(shortcut + output)
            return weighed

        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            options = ForwardOptions(key=key, compute=dataclasses.replace(compute, remat="none"))
            model = Model(config, compute.cast(params))
            state = model.embed(batch, compute, key)
            for block in blocks_of(model):
                join = functools.partial(weigh, block.stack) if isinstance(block, LayerBlock) else None
                state = block.run(state, options._replace(join=join))
        return {name: jnp.stack(records[:-1]) for name, records in records_of.items()}

    return jax.jit(omegas, out_shardings=replicated(mesh))


def variance(x: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Return the variance of `[batch, length, width]` in float32, of the tokens that `mask` marks; NaN without any."""
    present = None if mask is None else jnp.broadcast_to(mask[:, :, None], x.shape)
    return jnp.var(x.astype(jnp.float32), where=present)


def constant_omega(sub_layers: int) -> float:
    """Return sqrt((n + 1) / ln(n + 1) - 1) for a stack of n sub-layers: changes of its output grow as ln n."""
    return math.sqrt((sub_layers + 1) / math.log(sub_layers + 1) - 1.0)


@kind("admin_constant")
@dataclasses.dataclass(frozen=True, kw_only=True)
class AdminConstant(Initialization):
    """Admin without profiling, as the package admin-torch by its authors has it: see `constant_omega`.

    Post-norm layers become LN(omega * x + f(x)); omega starts as that number everywhere and is learned.
    """

    def configure(self, config: ModelConfig) -> ModelConfig:
        require_post_norm(config, "Admin is an initialisation")
        return dataclasses.replace(config, residual="scaled_post_norm")

    def draw(self, config: ModelConfig, key: jax.Array) -> Params:
        counts = {name: sum(len(layer.slots) for layer in stack.layers) for name, stack in config.stacks().items()}
        omega = {name: [constant_omega(count)] * count for name, count in counts.items()}
        return set_shortcuts(config, config.initialize(key), omega)


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
        names = {field.name for field in dataclasses.fields(cls)}
        return from_data(cls, {name: value for name, value in run.items() if name in names})

    def __post_init__(self) -> None:
        super().__post_init__()
        started, fresh = bool(self.start), self.model is not None
        require(fresh or started, "model", "missing; describe one, or name a directory in start")
        require(not (fresh and started), "start", "stands beside a model; a run has one or the other")
        require(self.task is None or started, "task", "is a new output of start; set model.task of a fresh model")
        initialized = self.initialization is not None and started
        require(not initialized, "initialization", "is for fresh models, and this one has trained parameters")

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
