"""The layouts of an export: each expresses a model exactly or refuses it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from headjax.core.errors import ConfigError, ParameterError
from headjax.core.fields import options_of
from headjax.core.kind import Kind
from headjax.core.modules import declared
from headjax.core.serialize import class_of, has_kind, is_group, kind_of
from headjax.core.tensors import flatten, nested
from headjax.heads.surgery import LayerModule, config_after, map_attention, pad_units
from headjax.hub.families import REMOTE
from headjax.hub.families.remote import spelled_out
from headjax.hub.family import Family
from headjax.hub.fields import Fields
from headjax.hub.importing import read_config
from headjax.hub.padding import pad_heads
from headjax.hub.rules import bind
from headjax.hub.table import InexpressibleError
from headjax.models.config import ModelConfig
from headjax.models.model import Model
from headjax.nn.module import AttentionModule
from headjax.nn.multi_head import GroupedAttention

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
    try:
        return Written(model, _write(model.config, family))
    except (InexpressibleError, ParameterError):  # perhaps one field tells of all biases (Llama's `attention_bias`)
        biased = config_after(model.config, _with_zero_biases)
        if biased != model.config:
            with contextlib.suppress(InexpressibleError, ParameterError):
                fields = _write(biased, family)
                return Written(_with_zero_biases(model), fields)
        raise


def remote(model: Model, family: Family) -> Written:
    """Write the shapes that the model has, and the code that computes them."""
    return Written(model, _write(model.config, family))


def padded(model: Model, family: Family) -> Written:
    """Write zeros in place of missing heads, dimensions and units: loads everywhere, not smaller, not faster."""
    return native(pad_units(pad_heads(model, family)), family)


Layout = Callable[[Model, Family], Written]

LAYOUTS: Mapping[str, Layout] = {"native": native, "remote": remote, "padded": padded}
"""The layouts by name; `auto` takes the first of them that can express the model."""


def choose(model: Model, families: Collection[Family], layout: str, *, with_code: bool) -> tuple[Family, str, Written]:
    """Return the first family that can express the model, the layout, and the result; `with_code` tries `REMOTE`."""
    refused: dict[str, str] = {}
    for name in LAYOUTS if layout == "auto" else (layout,):
        result = first_family(model, families, name, with_code)
        if not isinstance(result, str):
            return result[0], name, result[1]
        refused[name] = result
    others = (name for name in LAYOUTS if name not in refused)
    can = next((name for name in others if not isinstance(first_family(model, families, name, with_code), str)), "onnx")
    raise InexpressibleError(f"{'; '.join(f'layout {name}: {why}' for name, why in refused.items())}; layout {can} can")


def first_family(
    model: Model, families: Collection[Family], layout: str, with_code: bool
) -> tuple[Family, Written] | str:
    """Return the first family that can express the model in a layout, and how; else why the first one cannot."""
    remote_families = [family for family in REMOTE if with_code and isinstance(model.config, family.kinds)]
    reasons = []
    for family in remote_families if layout == "remote" else families:
        try:
            return family, LAYOUTS[layout](model, family)
        except (InexpressibleError, ParameterError) as error:
            reasons.append(str(error))
    return reasons[0] if reasons else f"no code computes {kind_of(model.config)} models"


def _with_zero_biases(model: Model) -> Model:
    """Return the model with all biases in its multi-head and grouped attention, those that were missing as zeros."""

    def biased(layer: LayerModule) -> AttentionModule:
        module = layer.module
        target, params = module.kind, module.params
        if not issubclass(target.of, GroupedAttention) or (target.projection_bias and target.output_bias):
            return module
        target = target.replace(projection_bias=True, output_bias=True)
        arrays, dtype = flatten(params), params["query"].dtype
        tensors = flatten(declared(target.module(module.width, module.memory_width)))
        zeros = {name: jnp.zeros(tensor.shape, dtype) for name, tensor in tensors.items() if name not in arrays}
        return module.like(target, nested(arrays | zeros))

    return map_attention(model, biased)


def _write(config: ModelConfig, family: Family) -> dict[str, Any]:
    """Return the fields of an architecture, which must give it when they are read back."""
    fields = family.write(config)
    names = {entry.theirs for entry in bind(family.tensor_rules(config), config, family.model_type)}
    try:
        read = read_config(family, Fields(fields, tensors=names))
    except ConfigError as error:
        raise InexpressibleError(str(error)) from None
    ours, theirs = dict(_values(config)), dict(_values(read))
    path = next((path for path, value in ours.items() if path not in theirs or theirs[path] != value), None)
    if path is not None:
        would = f"{path} is {ours[path]!r} (it would be {theirs.get(path)!r})"
        raise InexpressibleError(f"a {family.model_type} config.json cannot express that {would}")
    return fields


def _values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a config's values by their paths, but for those of training; of a part its kind, of a list its length."""
    if isinstance(value, Kind):
        value = spelled_out(value)
    if is_group(value):
        yield path, kind_of(value) if has_kind(value) else class_of(value).__name__
        for name in options_of(class_of(value)):
            if name not in TRAINING_ONLY:
                yield from _values(getattr(value, name), f"{path}.{name}" if path else name)
    elif isinstance(value, tuple):
        yield f"length of {path}", len(value)
        for number, each in enumerate(value):
            yield from _values(each, f"{path}[{number}]")
    else:
        yield path, value


def _renumber(model: Model) -> Model:
    """Return the model with heads numbered from 0 in every layer, and a position bias of the remaining heads."""
    config, params = model.config, dict(model.params)
    biases: dict[str, Any] = {}
    for name, stack in config.stacks().items():
        if stack.position_bias is not None:
            ids = {attention.ids for attention in stack.attentions("attention")}
            if len(ids) > 1:
                raise InexpressibleError(f"{name}: its layers share one position bias, but kept different heads")
            columns = jnp.asarray(next(iter(ids)), jnp.int32)
            table = jnp.take(params[name]["position_bias"]["table"], columns, axis=1)
            params[name] = params[name] | {"position_bias": {"table": table}}
            bias = dataclasses.replace(stack.position_bias, num_heads=len(columns))
            biases[config.STACKS[name]["position_bias"]] = bias
    layers = {name: [layer.structure() for layer in stack.layers] for name, stack in config.stacks().items()}
    renumbered = dataclasses.replace(config.with_layers(layers), **biases)
    return model.replace(config=renumbered, params=params)
