"""What every recipe is: the few numbers a person writes down, from which a model's full config is built."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from headjax.attention.formulation import Attention
from headjax.core.errors import require
from headjax.core.fields import Checked
from headjax.core.tensors import Params
from headjax.models.base import ModelConfig
from headjax.models.layer import Layer
from headjax.models.norms import Norm
from headjax.models.residual import PreNorm, Residual
from headjax.models.stack import Stack


class Start(NamedTuple):
    """Where training starts.

    Attributes:
        config: the architecture.
        params: trained parameters, or None for fresh ones.
        tokenizer: the tokenizer that goes with trained parameters.
        history: what was done to them.
    """

    config: ModelConfig
    params: Params | None = None
    tokenizer: Any = None
    history: tuple[Mapping[str, Any], ...] = ()


class Recipe(Checked, abc.ABC):
    """What `config.model` of a config file holds."""

    def start(self) -> Start:
        """The model that training starts from."""
        return Start(self.build())

    @abc.abstractmethod
    def build(self) -> ModelConfig:
        """The full config.

        Raises:
            ConfigError: fields that do not fit together.
        """


def equal_layers(layer: Layer, num_layers: int, attention_by_layer: tuple[Attention, ...]) -> tuple[Layer, ...]:
    """The layer `num_layers` times, each with its own formulation where they are given."""
    if not attention_by_layer:
        return (layer,) * num_layers
    require(
        len(attention_by_layer) == num_layers,
        "attention_by_layer",
        f"names {len(attention_by_layer)} layers, but num_layers is {num_layers}",
    )
    return tuple(dataclasses.replace(layer, attention=attention) for attention in attention_by_layer)


def equal_stack(layer: Layer, num_layers: int, attention_by_layer: tuple[Attention, ...]) -> Stack:
    """A stack of `equal_layers`, with the final normalisation that pre-norm layers need."""
    layers = equal_layers(layer, num_layers, attention_by_layer)
    return Stack(layers=layers, final_norm=final_norm(layer.residual))


def final_norm(residual: Residual) -> Norm | None:
    """The normalisation that ends a pre-norm stack; None where the layers normalise their own output."""
    return residual.norm if isinstance(residual, PreNorm) else None
