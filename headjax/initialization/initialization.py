"""Initialisations: their base, the architecture of a run that has one, and the changes that they make to layers."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from headjax.core.errors import require
from headjax.core.fields import Checked
from headjax.core.modules import arrays, declared
from headjax.core.tensors import Params, flatten
from headjax.models.config import Batch, ModelConfig
from headjax.models.model import Model
from headjax.nn.state import Compute


class Setting(NamedTuple):
    """Conditions of a measurement."""

    batches: Sequence[Batch]  # arrays on the mesh
    key: jax.Array  # of dropout
    mesh: Mesh
    compute: Compute = Compute()


class Initialization(Checked, abc.ABC):
    """Base of the initialisations: the architecture a model needs, its first weights, and measurements on data.

    Everything that a kind does not change stays as it is without an initialisation.
    """

    @property
    def num_batches(self) -> int:
        """Training batches that `measure` needs."""
        return 0

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


def scale_weights(config: ModelConfig, params: Params, factor: Callable[[str, str], float]) -> Params:
    """Multiply every weight of every layer by a factor; biases and norms (`decay` is False) stay."""
    network = Model(config, params)
    for name, stack in config.stacks().items():
        for group in stack.groups:
            for path, weight in flatten(declared(getattr(getattr(network, name), group.name))).items():
                if weight.decay:
                    weight.set_raw_value(weight.get_raw_value() * factor(name, path))
    return arrays(network)


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
