"""Fold Admin's omega into the weights around it: plain post-norm layers of the same function."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp

from headjax.core import history
from headjax.core.errors import ConfigError, require
from headjax.core.modules import arrays
from headjax.core.norms import Norm
from headjax.core.tensors import Params, Tensors, flatten
from headjax.models.config import ModelConfig
from headjax.models.layer import Layer
from headjax.models.model import Model
from headjax.models.residuals import PostNorm, ScaledPostNorm
from headjax.models.stack import SharedStack


def fold_shortcuts(model: Model) -> Model:
    """Return the model with omega folded into the weights around it: post-norm layers, the same up to rounding.

    With x'_i = omega_(i+1) * x_i, the layer LN(omega_i * x_(i-1) + f_i(x_(i-1))) reads LN(x'_(i-1) + f'_i(x'_(i-1))):
    the scale and bias of the normalisation before are multiplied by omega_i, and the rows of f_i's input weights are
    divided by omega_i. The last sub-layer's output stays as it is, so a stack's output does not change.

    A stack's first omega goes into the normalisation of the embeddings. Without such a normalisation the first layer
    stays `scaled_post_norm` and keeps its first omega.

    Args:
        model: Model of `ScaledPostNorm` layers.

    Raises:
        ConfigError: A stack has other layers, its layers share their parameters, or an omega is zero.
    """
    config, params = model.config, dict(model.params)
    stacks = {}
    for name, stack in config.stacks().items():
        shared = isinstance(stack, SharedStack)
        require(not shared, f"{name}.layers", "share their parameters; folding gives each layer weights of its own")
        residuals = [layer.residual for layer in stack.layers if type(layer.residual) is ScaledPostNorm]
        if len(residuals) < len(stack.layers):
            raise ConfigError(f"{name}.layers: not all are scaled_post_norm; there is nothing to fold")
        layers = [_copy(layer) for layer in stack.unstack(params[name])]
        before = _embeddings_norm(config, name)
        norms = [] if before is None else [(_embeddings(config, name).norm, dict(params[before]["norm"]))]
        _fold(stack.layers, layers, norms, config.width)
        if before is not None:
            params[before] = params[before] | {"norm": norms[0][1]}
        folded = [
            dataclasses.replace(layer, residual=PostNorm(residual.norm))
            for layer, residual in zip(stack.layers, residuals, strict=True)
        ]
        if before is None:
            folded[0] = stack.layers[0]
        stacks[name] = dataclasses.replace(stack, layers=tuple(folded))
        for layer, weights in zip(folded, layers, strict=True):
            if type(layer.residual) is PostNorm:
                for slot in layer.residual_slots:
                    weights[slot].pop("shortcut")
        params[name] = stacks[name].restack(layers, params[name])
    entry = history.entry("fold shortcuts")
    return model.replace(config=config.replace_stacks(stacks), params=params, history=(*model.history, entry))


def _fold(layers: tuple[Layer, ...], weights: list[Params], norms: list[tuple[Norm, Params]], width: int) -> None:
    """Fold omega in place; `norms` starts with the normalisation before the first sub-layer, if there is one."""
    for number, (layer, params) in enumerate(zip(layers, weights, strict=True)):
        for slot in layer.residual_slots:
            omega = params[slot]["shortcut"]
            if norms:
                if not bool(jnp.all(omega != 0)):
                    raise ConfigError(f"layers[{number}].{slot}.shortcut: holds a zero, which cannot be folded away")
                (norm, before), part = norms[-1], slot.removesuffix("_residual")
                before |= arrays(norm.bind(before, width).scaled(omega))
                params[part] = _divide_rows(_reading(layer, part, width), params[part], omega)
                params[slot]["shortcut"] = jnp.ones_like(omega)
            norms.append((cast(Norm, layer.residual.norm), params[slot]["norm"]))


def _reading(layer: Layer, part: str, width: int) -> dict[str, tuple[int, ...]]:
    """Return the dimensions of each weight that run along the stream that the sub-layer reads, by path.

    These dimensions grow with the stream's width, and the weight sums over them. Keys and values of cross-attention
    read the encoder output and not the stream; declaring them with a fixed width leaves them out.
    """

    def declare(size: int) -> Tensors:
        if part == "feed_forward":
            return layer.feed_forward.tensors(size)
        return getattr(layer, part).tensors(size, size if part == "attention" else width)

    small, large = flatten(declare(width)), flatten(declare(2 * width))
    return {
        path: tuple(i for i in tensor.inputs if tensor.shape[i] != large[path].shape[i])
        for path, tensor in small.items()
        if len(tensor.shape) > 1
    }


def _divide_rows(dimensions: dict[str, tuple[int, ...]], params: Params, omega: jax.Array) -> Params:
    given = flatten(params)

    def divide(path: str, array: jax.Array) -> jax.Array:
        for dimension in dimensions.get(path, ()):
            array = array / jnp.expand_dims(omega, [i for i in range(array.ndim) if i != dimension])
        return array

    return _nest({path: divide(path, array) for path, array in given.items()}, params)


def _nest(flat: dict[str, Any], like: Params, prefix: str = "") -> Params:
    return {
        name: _nest(flat, entry, f"{prefix}{name}/") if isinstance(entry, dict) else flat[f"{prefix}{name}"]
        for name, entry in like.items()
    }


def _copy(params: Params) -> Params:
    return {name: _copy(entry) if isinstance(entry, dict) else entry for name, entry in params.items()}


def _embeddings_norm(config: ModelConfig, stack: str) -> str | None:
    """Return the key of the embeddings whose normalisation gives the stack's input, or None."""
    embeddings = _embeddings(config, stack)
    if embeddings is None or embeddings.norm is None or embeddings.size is not None:
        return None
    return "decoder_embeddings" if config.stacks()[stack].crossed else "embeddings"


def _embeddings(config: ModelConfig, stack: str) -> Any:
    """Return the embeddings that a stack reads, or None."""
    return getattr(config, "target_embeddings" if config.stacks()[stack].crossed else "embeddings", None)
