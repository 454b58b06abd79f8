"""Fold Admin's omega into the weights around it: plain post-norm layers of the same function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core import history
from headjax.core.errors import ConfigError, require
from headjax.core.modules import arrays, bind, declared
from headjax.core.norms import Normalisation
from headjax.core.tensors import Tensors, flatten
from headjax.models.config import ModelConfig
from headjax.models.layer import Layer, TransformerLayer
from headjax.models.model import Model
from headjax.models.residuals import PostNorm, ScaledPostNorm
from headjax.models.shared_stack import SharedStack


def fold_shortcuts(model: Model) -> Model:
    """Return the model with omega folded into the weights around it: post-norm layers, the same up to rounding.

    With x'_i = omega_(i+1) * x_i, the layer LN(omega_i * x_(i-1) + f_i(x_(i-1))) reads LN(x'_(i-1) + f'_i(x'_(i-1))).
    The scale and bias of the normalisation before are multiplied by omega_i, and the rows of f_i's input weights are
    divided by omega_i. The last sub-layer's output stays as it is, so a stack's output does not change.

    A stack's first omega goes into the normalisation of the embeddings. Without such a normalisation the first layer
    stays `scaled_post_norm` and keeps its first omega.
    """
    config, params, width = model.config, dict(model.params), model.config.width
    stacks = {}
    for name, stack in config.stacks().items():
        shared = isinstance(stack, SharedStack)
        require(not shared, f"{name}.layers", "share their parameters; folding gives each layer other weights")
        norms = [layer.residual.norm for layer in stack.layers if isinstance(layer.residual, ScaledPostNorm)]
        if len(norms) < len(stack.layers):
            raise ConfigError(f"{name}.layers: not all are scaled_post_norm; there is nothing to fold")
        layers = stack.modules(params[name], width)
        before = _embeddings_norm(config, name)
        norm: Any = None if before is None else _embeddings(config, name).norm.bind(params[before]["norm"], width)
        _fold(layers, norm, width)
        if before is not None:
            params[before] = params[before] | {"norm": arrays(norm)}
        folded = range(before is None, len(layers))
        stacks[name] = stack.with_fields({(i, "residual"): PostNorm(norms[i]) for i in folded})
        weights = [arrays(layer) for layer in layers]
        for i in folded:
            for slot in stack.layers[i].residual_slots:
                weights[i][slot].pop("shortcut")
        params[name] = stacks[name].restack(weights, params[name])
    entry = history.entry("fold shortcuts")
    return model.replace(config=config.replace_stacks(stacks), params=params, history=(*model.history, entry))


def _fold(layers: Sequence[TransformerLayer], norm: Normalisation | None, width: int) -> None:
    """Fold omega in the layers' arrays; `norm` is the normalisation before the first sub-layer, if there is one."""
    for number, layer in enumerate(layers):
        for slot in layer.config.slots:
            residual: Any = getattr(layer, f"{slot}_residual")
            omega = residual.shortcut.get_raw_value()
            if norm is not None:
                if not bool(jnp.all(omega != 0)):
                    field = f"layers[{number}].{slot}_residual.shortcut"
                    raise ConfigError(f"{field}: holds a zero, which cannot be folded away")
                bind(norm, arrays(norm.scaled(omega)))
                _divide_rows(getattr(layer, slot), _reading(layer.config, slot, width), omega)
                residual.shortcut.set_raw_value(jnp.ones_like(omega))
            norm = residual.norm


def _divide_rows(module: nnx.Module, dimensions: dict[str, tuple[int, ...]], omega: jax.Array) -> None:
    for path, weight in flatten(declared(module)).items():
        array = weight.get_raw_value()
        for dimension in dimensions.get(path, ()):
            array = array / jnp.expand_dims(omega, [i for i in range(array.ndim) if i != dimension])
        weight.set_raw_value(array)


def _reading(layer: Layer, part: str, width: int) -> dict[str, tuple[int, ...]]:
    """Return the dimensions of each weight that run along the stream that the sub-layer reads, by path.

    Such dimensions grow with the stream's width, and the weight sums over them. Keys and values of cross-attention
    read the encoder output and not the stream; declaring them with a fixed width leaves them out.
    """

    def declare(size: int) -> Tensors:
        if part == "feed_forward":
            return layer.feed_forward.tensors(size)
        return declared(getattr(layer, part).module(size, size if part == "attention" else width))

    small, large = flatten(declare(width)), flatten(declare(2 * width))
    return {
        path: tuple(i for i in tensor.inputs if tensor.shape[i] != large[path].shape[i])
        for path, tensor in small.items()
        if len(tensor.shape) > 1
    }


def _embeddings_norm(config: ModelConfig, stack: str) -> str | None:
    """Return the key of the embeddings whose normalisation gives the stack's input, or None."""
    embeddings = _embeddings(config, stack)
    if embeddings is None or embeddings.norm is None or embeddings.size is not None:
        return None
    return "decoder_embeddings" if config.stacks()[stack].crossed else "embeddings"


def _embeddings(config: ModelConfig, stack: str) -> Any:
    """Return the embeddings that a stack reads, or None."""
    return getattr(config, "target_embeddings" if config.stacks()[stack].crossed else "embeddings", None)
