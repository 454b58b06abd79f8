"""The layouts of an export: each expresses a model exactly or refuses it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp

from headjax.core.errors import ConfigError, HeadjaxError, ParameterError
from headjax.core.fields import options_of
from headjax.core.kind import Kind
from headjax.core.modules import declared
from headjax.core.serialize import class_of, has_kind, is_group, kind_of
from headjax.core.tensors import flatten, nested
from headjax.heads.surgery import LayerModule, config_after, map_attention
from headjax.heads.units import pad_units
from headjax.hub.families import REMOTE
from headjax.hub.family import Family, HeadShape
from headjax.hub.fields import Fields
from headjax.hub.importing import read_config
from headjax.hub.padding import pad_heads
from headjax.hub.rules import bind
from headjax.hub.table import InexpressibleError
from headjax.models.config import ModelConfig
from headjax.models.model import Model
from headjax.nn.latent import LatentAttention
from headjax.nn.module import AttentionModule
from headjax.nn.multi_head import GroupedAttention, MultiHeadAttention

T = TypeVar("T")

TRAINING_ONLY = {
    "initializer",
    "dropout",
    "embedding_dropout",
    "pooler_dropout",
    "attention_dropout",
    "feed_forward_dropout",
    "stochastic_depth",
    "label_smoothing",
}
"""Fields that do not change a trained model's function; a family may have no name for their values."""


class Written(NamedTuple):
    """A model as a family can write it."""

    model: Model
    fields: dict[str, Any]


def native(model: Model, family: Family) -> Written:
    """Write the shapes that the model has: equal layers whose heads the family's config can describe."""
    model = _renumber(model)  # a config has no field for the original numbers of heads
    fields = _attempt(_write, model.config, family)
    if isinstance(fields, HeadjaxError):  # perhaps one field tells of all biases (Llama's `attention_bias`)
        biased = config_after(model.config, _with_zero_biases)
        if biased == model.config or isinstance(_attempt(_write, biased, family), HeadjaxError):
            raise fields
        model = _with_zero_biases(model)
        fields = _write(model.config, family)
    return Written(model, fields)


def remote(model: Model, family: Family) -> Written:
    """Write the shapes that the model has, and the code that computes them."""
    return Written(model, _write(model.config, family))


def padded(model: Model, family: Family) -> Written:
    """Write zeros in place of missing heads, dimensions and units: loads everywhere, not smaller, not faster."""
    return native(pad_units(pad_heads(model, family)), family)


Layout = Callable[[Model, Family], Written]

LAYOUTS: Mapping[str, Layout] = {"native": native, "remote": remote, "padded": padded}
"""The layouts by name; `auto` takes the first of them that can express the model."""


def choose(model: Model, families: Collection[Family], layout: str, *, own: bool) -> tuple[Family, str, Written]:
    """Return the first family, with `own` also of `REMOTE`, that can express the model, the layout, and the result."""
    candidates = _candidates(model, families, own)
    names = [name for name in LAYOUTS if candidates[name]] if layout == "auto" else [layout]
    refused = []
    for name in names:
        reasons = []
        for family in candidates[name]:
            found = _attempt(LAYOUTS[name], model, family)
            if isinstance(found, Written):
                return family, name, found
            reasons.append(found)
        refused.append(
            f"layout {name}: {reasons[0] if reasons else f'no code computes {kind_of(model.config)} models'}"
        )
    for name in LAYOUTS if layout != "auto" else ():
        if name != layout and any(isinstance(_attempt(LAYOUTS[name], model, f), Written) for f in candidates[name]):
            raise InexpressibleError(f"{refused[0]}; layout {name} can")
    said = "; ".join(refused)
    raise InexpressibleError(f"{said}; only layout onnx can{_other_target(next(iter(families)))}")


def refusals(model: Model, families: Collection[Family]) -> dict[str, str]:
    """Return why each layout cannot express the model, best layout first; nothing for those that can."""
    found = {}
    for name, candidates in _candidates(model, families, True).items():
        tried = [_attempt(LAYOUTS[name], model, family) for family in candidates]
        can = any(isinstance(each, Written) for each in tried)
        found[name] = "" if can else str(next(iter(tried), "there is no code of such models"))
    return found


def _candidates(model: Model, families: Collection[Family], own: bool) -> dict[str, Collection[Family]]:
    """Return the families that may express the model in each layout."""
    with_code = [family for family in REMOTE if own and isinstance(model.config, family.kinds)]
    return {name: with_code if name == "remote" else families for name in LAYOUTS}


def _attempt(function: Callable[..., T], *arguments: Any) -> T | HeadjaxError:
    """Return a function's result, or its error where a family cannot express a model."""
    try:
        return function(*arguments)
    except (InexpressibleError, ParameterError) as error:
        return error


def _other_target(family: Family) -> str:
    """Return a hint at a conversion whose result a family can express; empty where it has none."""
    heads = family.standard(HeadShape(2, 2, 1), Kind(MultiHeadAttention, num_heads=2, head_dim=2))
    hint = f"; {family.model_type} can express grouped heads (headjax convert --to grouped)"
    return hint if heads.of is GroupedAttention else ""


def _with_zero_biases(model: Model) -> Model:
    """Return the model with all biases in its multi-head and grouped attention, those that were missing as zeros."""

    def biased(found: LayerModule) -> AttentionModule:
        module = found.module
        own, params = module.kind, module.params
        if not issubclass(own.of, GroupedAttention) or (own.projection_bias and own.output_bias):
            return module
        own = own.replace(projection_bias=True, output_bias=True)
        held, dtype = flatten(params), params["query"].dtype
        weights = flatten(declared(own.module(module.width, module.memory_width))).items()
        return module.like(own, nested({name: held.get(name, jnp.zeros(one.shape, dtype)) for name, one in weights}))

    return map_attention(model, biased)


def _write(config: ModelConfig, family: Family) -> dict[str, Any]:
    """Return the fields of an architecture, which must give it when they are read back."""
    fields = family.write(config)
    names = {entry.theirs for entry in bind(family.tensor_rules(config), config, family.model_type)}
    try:
        read = read_config(family, Fields(fields, tensors=names))
    except ConfigError as error:
        raise InexpressibleError(str(error)) from None
    found = first_difference(config, read, TRAINING_ONLY)
    if found is not None:
        raise InexpressibleError(f"a {family.model_type} config.json cannot express that {found}")
    return fields


def first_difference(one: Any, other: Any, ignored: Collection[str], path: str = "") -> str | None:
    """Return a phrase about the first field in which two configs differ; None if they compute the same."""
    if isinstance(one, Kind) and isinstance(other, Kind):
        one, other = _spelled_out(one), _spelled_out(other)
    if class_of(one) is not class_of(other):
        return f"{path} is {_shown(one)} (it would be {_shown(other)})"
    if is_group(one):
        for name in options_of(class_of(one)):
            if name in ignored:
                continue
            inner = f"{path}.{name}" if path else name
            found = first_difference(getattr(one, name), getattr(other, name), ignored, inner)
            if found is not None:
                return found
        return None
    if isinstance(one, tuple) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        phrases = (first_difference(a, b, ignored, f"{path}[{i}]") for i, (a, b) in pairs)
        return next((phrase for phrase in phrases if phrase is not None), None)
    return None if one == other else f"{path} is {_shown(one)} (it would be {_shown(other)})"


def _spelled_out(attention: Kind) -> Kind:
    """Return the attention with those defaults written out that follow from other fields."""
    if issubclass(attention.of, GroupedAttention | LatentAttention):
        attention = attention.replace(value_dim=attention.values, scale=attention.logit_scale)
    if attention.of is GroupedAttention:
        attention = attention.replace(kv_index=attention.groups)
    return attention.replace(head_ids=attention.ids) if "head_ids" in attention.options else attention


def _shown(value: Any) -> str:
    return kind_of(value) if has_kind(value) else repr(value)


def _renumber(model: Model) -> Model:
    """Return the model with heads numbered from 0 in every layer, and a position bias of the remaining heads."""
    config, params = model.config, dict(model.params)
    biases: dict[str, Any] = {}
    for name, stack in config.stacks().items():
        if stack.position_bias is not None:
            kept = {attention.ids for attention in stack.attentions("attention")}
            if len(kept) > 1:
                raise InexpressibleError(f"{name}: its layers share one position bias, but kept different heads")
            columns = jnp.asarray(next(iter(kept)), jnp.int32)
            table = jnp.take(params[name]["position_bias"]["table"], columns, axis=1)
            params[name] = params[name] | {"position_bias": {"table": table}}
            bias = dataclasses.replace(stack.position_bias, num_heads=len(columns))
            biases[f"{config.STACKS[name]}position_bias"] = bias
    layers = {name: [layer.structure() for layer in stack.layers] for name, stack in config.stacks().items()}
    renumbered = dataclasses.replace(config.with_layers(layers), **biases)
    return model.replace(config=renumbered, params=params)
