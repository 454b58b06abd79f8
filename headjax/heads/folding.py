"""Fold Admin's omega into the weights around it: plain post-norm layers of the same function."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core import history
from headjax.core.errors import ConfigError, require
from headjax.core.modules import arrays, bind, declared
from headjax.core.tensors import Tensors, flatten
from headjax.models.model import Model
from headjax.nn.layer import Layer, TransformerLayer
from headjax.nn.norms import Normalisation


def fold_shortcuts(model: Model) -> Model:
    """Return the model with omega folded into the weights around it: post-norm layers, the same up to rounding.

    With x'_i = omega_(i+1) * x_i, the layer LN(omega_i * x_(i-1) + f_i(x_(i-1))) reads LN(x'_(i-1) + f'_i(x'_(i-1))).
    The scale and bias of the normalisation before are multiplied by omega_i, and the rows of f_i's input weights are
    divided by omega_i. The last sub-layer's output stays as it is, so a stack's output does not change.

    A stack's first omega goes into the normalisation of the embeddings, which the model must have.
    """
    config, params = model.config, dict(model.params)
    if config.residual != "scaled_post_norm":
        raise ConfigError(f"residual: is {config.residual}, not scaled_post_norm; there is nothing to fold")
    require(not getattr(config, "shared_layers", False), "shared_layers", "folding gives each layer other weights")
    normed = getattr(config, "embedding_norm", False) and getattr(config, "embedding_size", None) is None
    require(normed, "embedding_norm", "there is no normalisation at full width that could take in the first omega")
    plain = dataclasses.replace(config, residual="post_norm")
    for name, stack in config.stacks().items():
        layers = stack.modules(params[name])
        before = "decoder_embeddings" if stack.crossed else "embeddings"
        norm = config.norm.bind(params[before]["norm"], config.width)
        _fold(layers, norm)
        params[before] = params[before] | {"norm": arrays(norm)}
        weights = [arrays(layer) for layer in layers]
        for layer, own in zip(stack.layers, weights, strict=True):
            for slot in layer.residual_slots:
                own[slot].pop("shortcut")
        params[name] = plain.stacks()[name].restack(weights, params[name])
    entry = history.entry("fold shortcuts")
    return model.replace(config=plain, params=params, history=(*model.history, entry))


def _fold(layers: Sequence[TransformerLayer], norm: Normalisation) -> None:
    """Fold omega in the layers' arrays; `norm` is the normalisation before the first sub-layer."""
    for number, layer in enumerate(layers):
        for slot in layer.config.slots:
            residual = getattr(layer, f"{slot}_residual")
            omega = residual.shortcut.get_raw_value()
            if not bool(jnp.all(omega != 0)):
                field = f"layers[{number}].{slot}_residual.shortcut"
                raise ConfigError(f"{field}: holds a zero, which cannot be folded away")
            bind(norm, arrays(norm.scaled(omega)))
            _divide_rows(getattr(layer, slot), _reading(layer.config, slot), omega)
            norm = residual.norm


def _divide_rows(module: nnx.Module, dimensions: dict[str, tuple[int, ...]], omega: jax.Array) -> None:
    for path, weight in flatten(declared(module)).items():
        array = weight.get_raw_value()
        for dimension in dimensions.get(path, ()):
            array = array / jnp.expand_dims(omega, [i for i in range(array.ndim) if i != dimension])
        weight.set_raw_value(array)


def _reading(layer: Layer, slot: str) -> dict[str, tuple[int, ...]]:
    """Return the dimensions of each weight that run along the stream that the sub-layer reads, by path.

    Such dimensions grow with the stream's width, and the weight sums over them. Keys and values of cross-attention
    read the encoder output and not the stream; declaring them with a fixed width leaves them out.
    """

    def declare(width: int) -> Tensors:
        if slot == "feed_forward":
            return declared(dataclasses.replace(layer, width=width).make_feed_forward())
        return declared(getattr(layer, slot).module(width, width if slot == "attention" else layer.width))

    small, large = flatten(declare(layer.width)), flatten(declare(2 * layer.width))
    return {
        path: tuple(i for i in tensor.inputs if tensor.shape[i] != large[path].shape[i])
        for path, tensor in small.items()
        if len(tensor.shape) > 1
    }
