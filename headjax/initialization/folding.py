"""Folding Admin's omega away: the same function as plain post-norm layers."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from headjax.core import history
from headjax.core.errors import ConfigError
from headjax.core.tensors import Params, Tensors, flatten
from headjax.initialization.layers import require_own_layers, residual_slots
from headjax.models.base import Model, ModelConfig
from headjax.models.layer import Layer
from headjax.models.residual import PostNorm, ScaledPostNorm


def fold_shortcuts(model: Model) -> Model:
    """The model with omega folded into the weights around it: post-norm layers, the same function up to rounding.

    With x'_i = omega_(i+1) * x_i, the layer LN(omega_i * x_(i-1) + f_i(x_(i-1))) reads LN(x'_(i-1) + f'_i(x'_(i-1))):
    the normalisation before gets omega_i times its scale and bias, and the rows of f_i's input weights are divided by
    omega_i. The last sub-layer's output stays as it is, so that whatever reads a stack finds what it found.

    A stack's first omega goes into the normalisation of the embeddings. Where they have none, the first layer keeps
    that omega (and is `scaled_post_norm` still, with ones after it).

    Args:
        model: a model with `ScaledPostNorm` layers.

    Raises:
        ConfigError: a stack without such layers, layers that share their parameters, or an omega that is zero.
    """
    config, params = model.config, dict(model.params)
    require_own_layers(config, "folding gives each layer weights of its own")
    stacks = {}
    for name, stack in config.stacks().items():
        residuals = [layer.residual for layer in stack.layers if type(layer.residual) is ScaledPostNorm]
        if len(residuals) < len(stack.layers):
            raise ConfigError(f"{name}.layers: not all are scaled_post_norm; there is nothing to fold")
        layers = [_copy(layer) for layer in stack.unstack(params[name])]
        before = _embeddings_norm(config, name)
        norms = [] if before is None else [dict(params[before]["norm"])]
        _fold(stack.layers, layers, norms, config.width)
        if before is not None:
            params[before] = params[before] | {"norm": norms[0]}
        folded = [
            dataclasses.replace(layer, residual=PostNorm(residual.norm))
            for layer, residual in zip(stack.layers, residuals, strict=True)
        ]
        if before is None:
            folded[0] = stack.layers[0]
        stacks[name] = dataclasses.replace(stack, layers=tuple(folded))
        for layer, weights in zip(folded, layers, strict=True):
            if type(layer.residual) is PostNorm:
                for slot in residual_slots(layer):
                    weights[slot].pop("shortcut")
        params[name] = stacks[name].restack(layers, params[name])
    entry = history.entry("fold shortcuts")
    return model.replace(config=config.replace_stacks(stacks), params=params, history=(*model.history, entry))


def _fold(layers: tuple[Layer, ...], weights: list[Params], norms: list[Params], width: int) -> None:
    """Folds in place; `norms` holds the normalisation before the first sub-layer, or nothing."""
    for number, (layer, params) in enumerate(zip(layers, weights, strict=True)):
        for slot in residual_slots(layer):
            omega = params[slot]["shortcut"]
            if norms:
                if not bool(jnp.all(omega != 0)):
                    raise ConfigError(f"layers[{number}].{slot}.shortcut: holds a zero, which cannot be folded away")
                before, part = norms[-1], slot.removesuffix("_residual")
                before |= {name: array * omega for name, array in before.items()}
                params[part] = _divide_rows(_reading(layer, part, width), params[part], omega)
                params[slot]["shortcut"] = jnp.ones_like(omega)
            norms.append(params[slot]["norm"])


def _reading(layer: Layer, part: str, width: int) -> dict[str, tuple[int, ...]]:
    """The dimensions of each weight that run along the stream the sub-layer reads, by path.

    They are those that grow with the stream's width and that the weight sums over. Cross-attention reads its memory,
    which is not the stream, by keys and values of another width.
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
    """Key of the embeddings whose normalisation is the stack's input, or None."""
    crossed = config.stacks()[stack].layers[0].cross_attention is not None
    embeddings = getattr(config, "target_embeddings" if crossed else "embeddings", None)
    if embeddings is None or embeddings.norm is None or embeddings.size is not None:
        return None
    return "decoder_embeddings" if crossed else "embeddings"
