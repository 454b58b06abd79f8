"""Recipes: few fields that a user writes down and from which the full config of a model is built."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from headjax.core import history
from headjax.core import tensors as declared
from headjax.core.errors import CheckpointError, ConfigError, require
from headjax.core.fields import Checked
from headjax.core.norms import Norm
from headjax.core.serialize import kind, kind_of, to_data
from headjax.core.tensors import Params
from headjax.models.config import ModelConfig
from headjax.models.layer import Layer
from headjax.models.model import Model, ModelFolder
from headjax.models.outputs import Pooler
from headjax.models.residuals import PreNorm, Residual
from headjax.models.stack import Stack
from headjax.models.tasks import TaskOutput


class Start(NamedTuple):
    """The model that training starts from.

    Attributes:
        config: the architecture.
        params: trained parameters, or None for fresh ones.
        tokenizer: the tokenizer that goes with trained parameters.
        history: changes made to them so far.
        files: other files that came with them, see `Model.files`.
    """

    config: ModelConfig
    params: Params | None = None
    tokenizer: Any = None
    history: tuple[Mapping[str, Any], ...] = ()
    files: Mapping[str, bytes] = MappingProxyType({})


class Recipe(Checked, abc.ABC):
    """Base of the recipes, the values of `config.model` in a config file."""

    def start(self, seed: int = 0) -> Start:
        """Return the model that training starts from."""
        return Start(self.build())

    @abc.abstractmethod
    def build(self) -> ModelConfig:
        """Return the full config."""


def layer_of(recipe: Any) -> Layer:
    """Return the layer made of the recipe's fields that are fields of a `Layer` too (`attention`, `dropout`, ...)."""
    names = {field.name for field in dataclasses.fields(Layer)} & {field.name for field in dataclasses.fields(recipe)}
    return Layer(**{name: getattr(recipe, name) for name in names})


def equal_stack(recipe: Any) -> Stack:
    """Return the stack of `recipe.num_layers` times its layer, with a final norm where its residuals need one.

    `recipe.attention_by_layer` holds formulations that differ from layer to layer; empty takes the layer's own for all.
    """
    layers, attentions = (layer_of(recipe),) * recipe.num_layers, recipe.attention_by_layer
    if attentions:
        require(
            len(attentions) == len(layers),
            "attention_by_layer",
            f"names {len(attentions)} layers, but num_layers is {len(layers)}",
        )
        layers = tuple(dataclasses.replace(layers[0], attention=attention) for attention in attentions)
    return Stack(layers=layers, final_norm=final_norm(recipe.residual))


def final_norm(residual: Residual) -> Norm | None:
    """Return the normalisation that ends a pre-norm stack; None where the layers normalise their own output."""
    return residual.norm if isinstance(residual, PreNorm) else None


def with_task(model: Model, output: TaskOutput, *, seed: int = 0) -> Model:
    """Return the model with a fresh output for another task; everything before the output stays.

    A pooler is added where the output reads the pooled vector and the model does not pool.

        >>> from headjax.attention import Kind, MultiHeadAttention
        >>> from headjax.models import Bert
        >>> from headjax.models.sublayers import Dense
        >>> from headjax.models.tasks import Classification
        >>> attention = Kind(MultiHeadAttention, num_heads=2, head_dim=8)
        >>> recipe = Bert(attention=attention, feed_forward=Dense(16), width=16, num_layers=1)
        >>> encoder = headjax.Model(recipe.build(), rngs=nnx.Rngs(0))
        >>> headjax.with_task(encoder, Classification(classes=3)).config.output.classes
        3
        >>> headjax.with_task(headjax.demo_model(), Classification(classes=3))
        Traceback (most recent call last):
            ...
        headjax.core.errors.ConfigError: task: the output of a decoder cannot be exchanged

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
    return Model(changed, {**model.params, **fresh}, (*model.history, entry), model.tokenizer, model.files)


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
        with self._reading():
            config = self._folder.config
        return config if self.task is None else with_task(Model(config, {}), self.task).config

    def start(self, seed: int = 0) -> Start:
        with self._reading():
            model = self._folder.model()
        model = model if self.task is None else with_task(model, self.task, seed=seed)
        return Start(model.config, model.params, model.tokenizer, model.history, model.files)

    @functools.cached_property
    def _folder(self) -> ModelFolder:
        return ModelFolder(self.path)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn an error about a field of the directory's config into one about the directory."""
        try:
            yield
        except ConfigError as error:
            raise CheckpointError(str(error)) from None
