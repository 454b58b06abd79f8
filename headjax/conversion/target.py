"""Bases of the conversions, and the layers that they are given."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from headjax.attention import Attention, Gated, Grouped, MultiHead, NoHeads
from headjax.conversion.calibration import Moments
from headjax.conversion.products import Products
from headjax.core.errors import ConfigError, require
from headjax.core.serialize import kind_of
from headjax.core.tensors import Params
from headjax.models.base import SLOTS, Model


class LayerError(NamedTuple):
    """How far a converted layer is from the original.

    Attributes:
        stack: head stack.
        layer: layer within it.
        relative_error: ||T - T'|| / ||T|| over all heads' scale * W_Q^h W_K^hT. Of a layer that became several:
            ||y - y'|| / ||y|| of its outputs y for random inputs.
        value_error: the same over W_V^h W_O^h; None of a layer that became several.
            Both are 0 for conversions that keep the function by construction (gates).
        logit_error: root mean square error of logits over their root mean square, for query and key inputs of the
            covariances of the calibration batches (of keys within a sequence, see `Moments`); None without batches.
    """

    stack: str
    layer: int
    relative_error: float
    value_error: float | None
    logit_error: float | None = None


class Site(NamedTuple):
    """One layer to convert.

    Attributes:
        attention: its formulation, as multi-head attention where the conversion asks for that.
        params: its parameters in float32.
        moments: of its inputs, when there were calibration batches.
    """

    attention: Attention
    params: Params
    moments: Moments | None

    @property
    def multi_head(self) -> MultiHead:
        """The formulation, for conversions that are given nothing else."""
        if not isinstance(self.attention, MultiHead):
            raise TypeError(f"expected multi-head attention, got {kind_of(self.attention)}")
        return self.attention


class Converted(NamedTuple):
    """What a layer became."""

    attention: Attention
    params: Params


class Target(abc.ABC):
    """Base of the conversions: frozen dataclasses whose fields are what `--to name:field=value,...` sets.

    Attributes:
        name: as typed on the command line.
        of_multi_head: whether the conversion starts from multi-head attention; other layers are refused or, where that
            is exact, first written as such.
    """

    name: ClassVar[str]
    of_multi_head: ClassVar[bool] = True

    @abc.abstractmethod
    def check(self, attention: Attention, width: int, memory_width: int) -> None:
        """Raises `ConfigError` naming the field when a layer cannot become this."""

    @abc.abstractmethod
    def convert(self, sites: Sequence[Site], seed: int) -> list[Converted]:
        """The layers' new formulations and float32 parameters, in order."""


class Restructuring(abc.ABC):
    """Base of the conversions that change which layers there are: frozen dataclasses like `Target`s.

    Attributes:
        name: as typed on the command line.
    """

    name: ClassVar[str]

    @abc.abstractmethod
    def restructure(
        self, model: Model, stacks: Collection[str] | None, layers: Collection[int] | None, seed: int
    ) -> tuple[Model, tuple[LayerError, ...]]:
        """The restructured model, its history with it, and the error of each layer that changed.

        Args:
            model: the model.
            stacks, layers: what to restructure, as for `headjax.conversion.convert`.
            seed: of whatever is drawn.

        Raises:
            ConfigError: a layer that cannot become this; the message names it.
        """


def as_multi_head(attention: Attention, params: Params) -> tuple[Attention, Params]:
    """The layer as multi-head attention: grouped layers give every query head its own copy of key and value."""
    if not isinstance(attention, Grouped):
        return attention, params
    index = jnp.asarray(attention.groups)
    copied = {
        name: jnp.take(array, index, axis=array.ndim - 2) if name.startswith(("key", "value")) else array
        for name, array in params.items()
    }
    return multi_head_of(attention), copied


def multi_head_of(attention: Attention) -> MultiHead:
    """The config of `as_multi_head`.

    Raises:
        ConfigError: the layer is neither multi-head nor grouped attention, or normalises queries or keys.
    """
    if isinstance(attention, MultiHead):
        return attention
    if not isinstance(attention, Grouped):
        raise ConfigError(f"attention: {kind_of(attention)} cannot be converted; multi_head and grouped can")
    plain = attention.query_norm is None and attention.key_norm is None
    require(plain, "query_norm", "normalised queries or keys are no product of weights and cannot be converted")
    kept = {field.name: getattr(attention, field.name) for field in dataclasses.fields(MultiHead)}
    return MultiHead(**kept)


def require_no_rotary(attention: Attention, name: str) -> None:
    """Raises `ConfigError` when rotary embeddings stand between queries and keys."""
    rotary = getattr(attention, "rotary", None)
    require(rotary is None, "rotary", f"turns queries and keys between W_Q and W_K, so the layer cannot become {name}")


def require_rank(field: str, rank: int, most: int, what: str) -> None:
    """Raises `ConfigError` unless 1 <= rank <= most."""
    require(1 <= rank <= most, field, f"must be from 1 to {what} = {most}, got {rank}")


def query_key_of(site: Site) -> Products:
    """W_Q and W_K of a multi-head site, the logits' scale left out."""
    return Products(site.params["query"], site.params["key"])


def value_output_of(site: Site) -> Products:
    """W_V and W_O of a multi-head site."""
    return Products(site.params["value"], jnp.moveaxis(site.params["output"], 2, 0))


def bias_or_zeros(site: Site, name: str) -> jax.Array:
    """A bias `[heads, dim]` of a multi-head site; zeros where it has none."""
    if f"{name}_bias" in site.params:
        return site.params[f"{name}_bias"]
    return jnp.zeros(site.params[name].shape[1:])


HeadLayer = tuple[str, int]
"""A head stack and a layer in it."""


def find_layers(
    model: Model, stacks: Collection[str] | None, layers: Collection[int] | None
) -> dict[HeadLayer, Attention]:
    """The formulations of the chosen layers that have heads; of layers that share their parameters only the first.

    Args:
        model: the model.
        stacks: head stacks; None is all.
        layers: layers, counted from 0; None is all.

    Raises:
        ConfigError: the model has no such head stack or layer.
    """
    attentions = model.config.attentions()
    for stack in stacks or ():
        if stack not in attentions:
            raise ConfigError(f"stacks: the model has no head stack {stack!r}; it has {', '.join(attentions)}")
    chosen_stacks = {name: found for name, found in attentions.items() if stacks is None or name in stacks}
    most = max(map(len, chosen_stacks.values()), default=0)
    for number in layers or ():
        if not 0 <= number < most:
            raise ConfigError(f"layers: there is no layer {number}; they are numbered 0 to {most - 1}")
    places = {}
    for name, formulations in chosen_stacks.items():
        home = model.config.stacks()[SLOTS[name][0]]
        for layer, attention in enumerate(formulations):
            tied = home.tied_layers(layer)
            chosen = layers is None or not set(layers).isdisjoint(tied)
            if chosen and layer == tied[0] and not isinstance(attention, NoHeads):
                places[name, layer] = attention
    return places


def layer_params(model: Model, places: Iterable[HeadLayer]) -> dict[HeadLayer, tuple[Attention, Params]]:
    """The formulations of these layers and their parameters in float32."""
    unstacked = {name: stack.unstack(model.params[name]) for name, stack in model.config.stacks().items()}
    attentions = model.config.attentions()
    found = {}
    for name, layer in places:
        home, slot = SLOTS[name]
        params = jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), unstacked[home][layer][slot])
        found[name, layer] = attentions[name][layer], params
    return found


def inside_gates(attention: Attention, params: Params) -> tuple[Attention, Params]:
    """What is inside a gated layer; any other layer as it is."""
    return (attention.inner, params["inner"]) if isinstance(attention, Gated) else (attention, params)
