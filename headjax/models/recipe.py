"""Recipes: the few fields that a user writes down, from which the full config of a model is built."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from headjax.attention.formulation import Attention
from headjax.core import history
from headjax.core import tensors as declared
from headjax.core.errors import ConfigError, require
from headjax.core.fields import Checked
from headjax.core.norms import Norm
from headjax.core.serialize import kind, kind_of, to_data
from headjax.core.tensors import Params
from headjax.models.config import ModelConfig
from headjax.models.layer import Layer, PreNorm, Residual
from headjax.models.model import Model, load, load_config
from headjax.models.outputs import Pooler
from headjax.models.stack import Stack
from headjax.models.tasks import TaskOutput


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


def with_task(model: Model, output: TaskOutput, *, seed: int = 0) -> Model:
    """The model with a fresh output for another task; everything before the output stays.

    A pooler is added where the output reads the pooled vector and the model does not pool.

    Args:
        model: a trained encoder or vision model.
        output: the task output.
        seed: of its parameters.

    Raises:
        ConfigError: the model has no exchangeable output, or cannot have this one.
    """
    config: Any = model.config
    if not isinstance(getattr(config, "output", None), TaskOutput):
        raise ConfigError(f"task: the output of a {kind_of(config)} cannot be exchanged")
    changes: dict[str, Any] = {"output": output}
    if output.needs_pooler and config.pooler is None:
        changes["pooler"] = Pooler()
    changed = dataclasses.replace(config, **changes)
    tensors = changed.tensors()
    fresh = declared.initialize({name: tensors[name] for name in changes}, jax.random.key(seed), config.initializer)
    entry = history.entry("task", output=to_data(output))
    return Model(changed, {**model.params, **fresh}, (*model.history, entry), model.tokenizer)


@kind("directory")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Directory(Recipe):
    """A model directory: an imported, pruned or converted model to train further.

    Attributes:
        path: the directory.
        task: train it for this task, with a fresh output; None keeps the output it has.
    """

    path: str
    task: TaskOutput | None = None

    def build(self) -> ModelConfig:
        config = load_config(self.path)
        return config if self.task is None else with_task(Model(config, {}), self.task).config

    def start(self) -> Start:
        model = load(self.path)
        model = model if self.task is None else with_task(model, self.task)
        return Start(model.config, model.params, model.tokenizer, model.history)
