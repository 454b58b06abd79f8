"""What initialisations do to layers: give them other residual connections, and scale what was drawn by depth."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import require
from headjax.core.serialize import kind_of
from headjax.core.tensors import Params, Tensor, Tensors, flatten, map_tensors
from headjax.models.compute import LayerGroup
from headjax.models.config import ModelConfig
from headjax.models.layer import Residual
from headjax.models.stack import SharedStack, Stack


def require_residual(config: ModelConfig, accepted: type[Residual], why: str) -> None:
    """Raises `ConfigError` unless every layer's residual connection is exactly of this type; `why` ends the message."""
    for name, stack in config.stacks().items():
        for number, layer in enumerate(stack.layers):
            field = f"{name}.layers[{number}].residual"
            require(type(layer.residual) is accepted, field, f"is {kind_of(layer.residual)}; {why}")


def require_own_layers(config: ModelConfig, why: str) -> None:
    """Raises `ConfigError` where layers share their parameters, and so cannot start differently by depth."""
    for name, stack in config.stacks().items():
        shared = isinstance(stack, SharedStack)
        require(not shared, f"{name}.layers", f"share their parameters; {why}")


def with_residuals(config: ModelConfig, residual_of: Callable[[str, Any], Residual]) -> ModelConfig:
    """The config with other residual connections, each from the name of its stack and the old one."""

    def replaced(name: str, stack: Stack) -> Stack:
        layers = [dataclasses.replace(layer, residual=residual_of(name, layer.residual)) for layer in stack.layers]
        return dataclasses.replace(stack, layers=tuple(layers))

    return config.replace_stacks({name: replaced(name, stack) for name, stack in config.stacks().items()})


def without_final_norms(config: ModelConfig) -> ModelConfig:
    """The config without normalisations of stacks' outputs."""
    stacks = config.stacks().items()
    return config.replace_stacks({name: dataclasses.replace(stack, final_norm=None) for name, stack in stacks})


def num_sub_layers(stack: Stack) -> int:
    """Number of residual sub-layers: two a layer, three with cross-attention."""
    return sum(len(layer.residual_slots) for layer in stack.layers)


def scale_weights(config: ModelConfig, params: Params, factor: Callable[[str, int, str], float]) -> Params:
    """Multiply every weight of every layer by a factor; biases and norms (`Tensor.decay` is False) stay.

    Args:
        config: the architecture.
        params: its parameters.
        factor: from stack, layer and the weight's path within the layer (`attention/query`) to what multiplies it.
    """
    declared, scaled = config.tensors(), dict(params)
    for name, stack in config.stacks().items():
        groups = {
            group.name: _scale_group(group, declared[name], params[name], partial(factor, name))
            for group in stack.groups
        }
        scaled[name] = params[name] | groups
    return scaled


def _scale_group(group: LayerGroup, tensors: Tensors, params: Params, factor: Callable[[int, str], float]) -> Params:
    given = flatten(params[group.name])

    def scale(path: str, tensor: Tensor) -> Any:
        if not tensor.decay:
            return given[path]
        factors = np.asarray([factor(layer, path) for layer in range(group.start, group.stop)], given[path].dtype)
        return given[path] * factors.reshape(-1, *(1,) * (given[path].ndim - 1))

    return map_tensors(scale, tensors[group.name])


def set_shortcuts(config: ModelConfig, params: Params, omega: Mapping[str, Any]) -> Params:
    """The parameters with these multipliers of the shortcuts.

    Args:
        config: an architecture of `ScaledPostNorm` layers.
        params: its parameters.
        omega: by stack, one number per sub-layer in the order in which they are computed.
    """
    changed = dict(params)
    for name, stack in config.stacks().items():
        changed[name] = dict(params[name])
        values = iter(np.asarray(omega[name], np.float32).tolist())
        for group in stack.groups:
            slots = group.layer.residual_slots
            by_layer = np.asarray([[next(values) for _ in slots] for _ in range(group.count)], np.float32)
            weights = dict(params[name][group.name])
            for column, slot in enumerate(slots):
                old = weights[slot]["shortcut"]
                new = jnp.broadcast_to(by_layer[:, column, None], old.shape).astype(old.dtype)
                weights[slot] = weights[slot] | {"shortcut": _placed_like(new, old)}
            changed[name][group.name] = weights
    return changed


def _placed_like(new: jax.Array, old: jax.Array) -> jax.Array:
    """The array where the old one lies; traced arrays lie nowhere yet."""
    return new if isinstance(old, jax.core.Tracer) else jax.device_put(new, old.sharding)
