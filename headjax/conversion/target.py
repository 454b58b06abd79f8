"""Base classes of the conversions, and the layers that they work on."""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from headjax.conversion.calibration import Moments
from headjax.core.errors import ConfigError, require
from headjax.core.fields import Checked, options_of
from headjax.core.serialize import kind_of
from headjax.core.tensors import Params
from headjax.heads.surgery import attention_layers
from headjax.models.model import Model
from headjax.nn import GroupedAttention, Kind, MultiHeadAttention, NoHeadsAttention
from headjax.nn.module import AttentionModule


class LayerError(NamedTuple):
    """Distance of a converted layer from the original."""

    stack: str
    layer: int
    # ||T - T'|| / ||T|| over all heads' scale * W_Q^h W_K^hT; of the outputs of a layer that became several.
    relative_error: float
    # The same over W_V^h W_O^h; None for a layer that became several.
    value_error: float | None
    # Root mean square error of logits over their own, for inputs of the batches' moments; None without batches.
    logit_error: float | None = None


class Site(NamedTuple):
    """One layer to convert, with weights in float32."""

    module: Any  # in the form that the conversion starts from
    moments: Moments | None = None  # None without calibration batches

    @property
    def attention(self) -> Kind:
        """Formulation of the layer."""
        return self.module.kind

    @property
    def params(self) -> Params:
        """The layer's arrays as a nested dict."""
        return self.module.params


class Target(Checked, abc.ABC):
    """Base of the conversions: frozen dataclasses whose fields `--to name:field=value,...` sets."""

    name: ClassVar[str]

    @abc.abstractmethod
    def check(self, attention: Kind, width: int, memory_width: int) -> None:
        """Raise a `ConfigError` that names the field when a layer cannot be converted."""

    def criteria(self) -> tuple[Target, ...]:
        """Return the conversions of which one with held-out batches takes the one that agrees best; else the first."""
        return (self,)

    def planned(self) -> Target:
        """Return a conversion to the same formulation that JAX can trace."""
        return self

    def prepare(self, module: AttentionModule) -> AttentionModule:
        """Return a layer with float32 weights in the form that the conversion starts from."""
        return as_multi_head(module)

    @abc.abstractmethod
    def convert(self, sites: Sequence[Site], seed: int) -> list[AttentionModule]:
        """Return the layers in their new formulations, with weights in float32, in order."""


def as_multi_head(module: AttentionModule) -> AttentionModule:
    """Return the layer as multi-head attention: every query head of a grouped layer gets a copy of key and value."""
    attention = module.kind
    return module.like(multi_head_of(attention), copied_keys(module)) if attention.of is GroupedAttention else module


def copied_keys(module: AttentionModule) -> Params:
    """Return the parameters of a grouped layer with a copy of its key and value for every query head."""
    index, shared = jnp.asarray(module.groups), ("key", "key_bias", "value", "value_bias")
    return {
        name: jnp.take(array, index, axis=array.ndim - 2) if name in shared else array
        for name, array in module.params.items()
    }


def multi_head_of(attention: Kind) -> Kind:
    """Return the config of `as_multi_head`."""
    if attention.of is MultiHeadAttention:
        whole = attention.frequencies is None
        require(whole, "frequencies", "heads that keep some rotary frequencies cannot be converted once more")
        return attention
    if attention.of is not GroupedAttention:
        raise ConfigError(f"attention: {kind_of(attention)} cannot be converted; multi_head and grouped can")
    plain = attention.query_norm is None and attention.key_norm is None
    require(plain, "query_norm", "normalised queries or keys are not products of weights and cannot be converted")
    return Kind(MultiHeadAttention, **shared_fields(attention))


def shared_fields(attention: Kind) -> dict[str, Any]:
    """Return the fields that multi-head and grouped attention both have."""
    names = options_of(MultiHeadAttention).keys() & options_of(GroupedAttention).keys()
    return {name: attention.options[name] for name in names}


def require_rank(field: str, rank: int, most: int, what: str) -> None:
    """Raise a `ConfigError` unless 1 <= rank <= most."""
    require(1 <= rank <= most, field, f"must be from 1 to {what} = {most}, got {rank}")


def bias_or_zeros(site: Site, name: str) -> jax.Array:
    """Return a bias `[heads, dim]` of a multi-head site; zeros where it has none."""
    if f"{name}_bias" in site.params:
        return site.params[f"{name}_bias"]
    return jnp.zeros(site.params[name].shape[1:])


HeadLayer = tuple[str, int]
"""A head stack and a layer in it."""


def find_layers(model: Model, stacks: Collection[str] | None, layers: Collection[int] | None) -> dict[HeadLayer, Kind]:
    """Return the formulations of the chosen layers with heads; of layers that share their parameters only the first."""
    attentions = model.config.attentions()
    for stack in stacks or ():
        if stack not in attentions:
            raise ConfigError(f"stacks: the model has no head stack {stack!r}; it has {', '.join(attentions)}")
    chosen_stacks = {name: found for name, found in attentions.items() if stacks is None or name in stacks}
    most = max(map(len, chosen_stacks.values()), default=0)
    for number in layers or ():
        if not 0 <= number < most:
            raise ConfigError(f"layers: there is no layer {number}; they are numbered 0 to {most - 1}")
    return {
        (site.head_stack, site.layer): site.attention
        for site in model.config.sites(chosen_stacks)
        if site.first
        and site.attention.of is not NoHeadsAttention
        and (layers is None or not set(layers).isdisjoint(site.tied))
    }


def layers_at(model: Model, places: Iterable[HeadLayer]) -> dict[HeadLayer, AttentionModule]:
    """Return the attention modules of these layers."""
    layers = {(found.stack, found.layer): found.module for found in attention_layers(model)}
    return {place: layers[place] for place in places}
