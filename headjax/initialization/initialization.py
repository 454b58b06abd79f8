"""Initialisations: their base, the architecture of a run that has one, and the changes that they make to layers."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from headjax.core.errors import require, within
from headjax.core.fields import Checked
from headjax.core.modules import arrays, declared
from headjax.core.serialize import kind_of
from headjax.core.tensors import Params, flatten
from headjax.models.compute import Compute
from headjax.models.config import Batch, ModelConfig
from headjax.models.recipe import Recipe
from headjax.models.residuals import Residual
from headjax.models.shared_stack import SharedStack
from headjax.models.stack import Stack


class Setting(NamedTuple):
    """Conditions of a measurement.

    Attributes:
        batches: training batches, as arrays on the mesh.
        key: PRNG key of dropout.
        mesh: the devices.
        compute: how to compute.
    """

    batches: Sequence[Batch]
    key: jax.Array
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


def architecture(recipe: Recipe, initialization: Initialization | None) -> ModelConfig:
    """Return the config of the model that a run trains."""
    with within("config.model"):
        config = recipe.build()
    return config if initialization is None else initialization.configure(config)


def require_residual(config: ModelConfig, accepted: type[Residual], why: str) -> None:
    """Raise `ConfigError` unless every layer's residual connection is exactly of this type; `why` ends the message."""
    for name, stack in config.stacks().items():
        for number, layer in enumerate(stack.layers):
            field = f"{name}.layers[{number}].residual"
            require(type(layer.residual) is accepted, field, f"is {kind_of(layer.residual)}; {why}")


def require_own_layers(config: ModelConfig, why: str) -> None:
    """Raise `ConfigError` where layers share their parameters, and so cannot start differently by depth."""
    for name, stack in config.stacks().items():
        shared = isinstance(stack, SharedStack)
        require(not shared, f"{name}.layers", f"share their parameters; {why}")


def with_residuals(config: ModelConfig, residual_of: Callable[[str, Any], Residual]) -> ModelConfig:
    """Return the config with other residual connections, each from the name of its stack and the old one."""

    def replaced(name: str, stack: Stack) -> Stack:
        layers = [dataclasses.replace(layer, residual=residual_of(name, layer.residual)) for layer in stack.layers]
        return dataclasses.replace(stack, layers=tuple(layers))

    return config.replace_stacks({name: replaced(name, stack) for name, stack in config.stacks().items()})


def num_sub_layers(stack: Stack) -> int:
    """Return the number of residual sub-layers: two a layer, three with cross-attention."""
    return sum(len(layer.residual_slots) for layer in stack.layers)


def scale_weights(config: ModelConfig, params: Params, factor: Callable[[str, str], float]) -> Params:
    """Multiply every weight of every layer by a factor; biases and norms (`decay` is False) stay."""
    network = config.bind(params)
    for name, stack in config.stacks().items():
        for group in stack.groups:
            for path, weight in flatten(declared(getattr(getattr(network, name), group.name))).items():
                if weight.decay:
                    weight.set_raw_value(weight.get_raw_value() * factor(name, path))
    return arrays(network)


def set_shortcuts(config: ModelConfig, params: Params, omega: Mapping[str, Any]) -> Params:
    """Return the parameters with these multipliers of the shortcuts."""
    network = config.bind(params)
    for name, stack in config.stacks().items():
        values = np.asarray(omega[name], np.float32).reshape(len(stack.layers), -1)
        for group in stack.groups:
            layers, own = getattr(getattr(network, name), group.name), values[group.start : group.stop]
            for column, slot in enumerate(group.layer.residual_slots):
                shortcut = getattr(layers, slot).shortcut
                old = shortcut.get_raw_value()
                new = jnp.broadcast_to(own[:, column, None], old.shape).astype(old.dtype)
                shortcut.set_raw_value(_placed_like(new, old))
    return arrays(network)


def _placed_like(new: jax.Array, old: jax.Array) -> jax.Array:
    """Return the array on the old one's devices; traced arrays are on none yet."""
    return new if isinstance(old, jax.core.Tracer) else jax.device_put(new, old.sharding)
