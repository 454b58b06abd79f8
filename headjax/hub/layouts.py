"""The layouts of an export: each expresses a model exactly or refuses it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from headjax.core.errors import ConfigError, ParameterError
from headjax.core.fields import options_of
from headjax.core.kind import Kind
from headjax.core.modules import bind as bind_arrays
from headjax.core.modules import declared
from headjax.core.serialize import class_of, has_kind, is_group, kind_of
from headjax.core.tensors import Params, flatten, nested
from headjax.heads.surgery import LayerModule, attention_layers, config_after, map_attention, pad_units
from headjax.hub.families import REMOTE
from headjax.hub.families.remote import spelled_out
from headjax.hub.family import Family
from headjax.hub.fields import Fields
from headjax.hub.importing import read_config
from headjax.hub.rules import bind
from headjax.hub.table import InexpressibleError
from headjax.models.config import HEAD_STACKS, ModelConfig
from headjax.models.model import Model
from headjax.nn.module import AttentionModule, NoHeadsAttention
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


LAYOUTS: Mapping[str, Callable[[Model, Family], Written]] = {
    "native": native,
    # The shapes that the model has, with the code that computes them.
    "remote": lambda model, family: Written(model, _write(model.config, family)),
    # Zeros in place of missing heads, dimensions and units: loads everywhere, not smaller, not faster.
    "padded": lambda model, family: native(pad_units(pad_heads(model, family)), family),
}
"""The layouts by name; `auto` takes the first of them that can express the model."""


Choice = tuple[Family, str, Written]
"""A family, the name of the layout in which it expresses a model, and the model as it writes it."""


def choose(model: Model, families: Collection[Family], layout: str) -> Choice:
    """Return the first family that can express the model, the layout, and the result."""
    refused: dict[str, str] = {}
    for name in LAYOUTS if layout == "auto" else (layout,):
        result = first_family(model, families, name)
        if not isinstance(result, str):
            return result[0], name, result[1]
        refused[name] = result
    others = (name for name in LAYOUTS if name not in refused)
    can = next((name for name in others if not isinstance(first_family(model, families, name), str)), "onnx")
    raise InexpressibleError(f"{'; '.join(f'layout {name}: {why}' for name, why in refused.items())}; layout {can} can")


def first_family(model: Model, families: Collection[Family], layout: str) -> tuple[Family, Written] | str:
    """Return the first family that can express the model in a layout, and how; else why the first one cannot."""
    reasons = []
    for family in (each for each in families if (each in REMOTE) == (layout == "remote")):
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


# Padding: heads of any counts and sizes as equal layers of a family's own heads, zero where missing.


def pad_heads(model: Model, family: Family) -> Model:
    """Return the same function in a family's own attention: heads in their original places, zeros in all others."""
    kinds: dict[tuple[str, int], Kind | None] = {}  # by head stack and layer; None is a layer without heads
    for layer in attention_layers(model):
        kind = layer.module.kind
        lost = kind.of is NoHeadsAttention
        if not lost and (not issubclass(kind.of, GroupedAttention) or kind.options.get("frequencies") is not None):
            raise InexpressibleError(f"{kind_of(kind)} attention of this kind cannot be padded")
        kinds[layer.stack, layer.layer] = None if lost else kind
    targets: dict[tuple[str, int], Kind] = {}
    for group in family.head_groups:
        of_group = {place: kind for place, kind in kinds.items() if place[0] in group}
        if of_group:
            target = _target(model, family, list(of_group.values()), group)
            targets |= {place: _with_rotary(target, model, of_group, place) for place in of_group}
    dtype = np.dtype(jnp.result_type(*(array.dtype for array in flatten(model.params).values())))

    def fill(layer: LayerModule) -> AttentionModule:
        place = layer.stack, layer.layer
        return layer.module.like(targets[place], _fill(layer.module, kinds[place], targets[place], dtype))

    return map_attention(model, fill)


def _target(model: Model, family: Family, kinds: Sequence[Kind | None], group: Sequence[str]) -> Kind:
    """Return the family's attention for the layers of a group of head stacks, all with the same number of heads."""
    config, stacks = model.config, model.config.stacks()
    like = max(
        (attention for stack in group for attention in config.attentions().get(stack, ())),
        key=lambda attention: min(attention.num_heads, 1),
    )
    heads = [kind for kind in kinds if kind is not None]
    count = max([1, *(max(kind.ids) + 1 for kind in heads)])
    for name, slot in (HEAD_STACKS[head_stack] for head_stack in group):
        if slot == "attention" and name in stacks and stacks[name].position_bias is not None:
            count = max(count, stacks[name].position_bias.num_heads)
    size = max((max(kind.head_dim, kind.values) for kind in heads), default=1)
    shape = family.head_shape(count, size, config.width)
    if shape is None:
        raise InexpressibleError(
            f"{', '.join(group)}: {count} heads of size {size} fit no {family.model_type} of width "
            f"{config.width}, where heads times size is the width"
        )
    target = family.standard(shape, like)
    if target.of is GroupedAttention:
        target = family.standard(shape._replace(kv_heads=_kv_heads(shape.num_heads, heads)), like)
    return target


def _with_rotary(
    target: Kind, model: Model, kinds: Mapping[tuple[str, int], Kind | None], place: tuple[str, int]
) -> Kind:
    """Return the target with the rotary positions of a layer's heads, and their factor in the scale of its logits.

    A layer that lost its heads gets those of a layer with the same window, or of any other.
    """
    layers = model.config.stacks()[model.config.site(*place).stack].layers
    others = [other for other in kinds if other[0] == place[0]]
    alike = [other for other in others if layers[other[1]].window == layers[place[1]].window]
    like = next((kind for each in (place, *alike, *others) if (kind := kinds[each]) is not None), None)
    if like is None or not issubclass(target.of, GroupedAttention) or target.rotary == like.rotary:
        return target
    old, new = (1.0 if rotary is None else rotary.logit_factor for rotary in (target.rotary, like.rotary))
    scale = None if target.scale is None else target.scale / old * new
    return target.replace(rotary=like.rotary, scale=scale)


def _fill(module: AttentionModule, heads: Kind | None, target: Kind, dtype: np.dtype) -> Params:
    """Return the target's parameters with a module's heads in their places and zeros elsewhere."""
    arrays = {path: np.asarray(array) for path, array in flatten(module.params).items()}
    tensors = flatten(declared(target.module(module.width, module.memory_width)))
    filled = {name: np.zeros(tensor.shape, dtype) for name, tensor in tensors.items()}
    lost = [name for name, array in arrays.items() if name not in filled and np.any(array)]
    if lost:
        named = ", ".join(lost).replace("_", " ").replace("/", " ")
        raise InexpressibleError(f"the family has no place for the {named}")
    for name in ("output/bias", "query_norm/scale", "key_norm/scale"):
        if name in filled:
            filled[name][...] = arrays.get(name, name != "output/bias")
    if heads is not None:
        # Neither norms nor heads that turn can be widened.
        norms = [heads.options.get(f"{name}_norm") for name in ("query", "key")]
        if norms != [target.options.get(f"{name}_norm") for name in ("query", "key")]:
            raise InexpressibleError("its norms of queries and keys are not those of the other layers")
        if heads.head_dim != target.head_dim and (heads.rotary is not None or any(norms)):
            raise InexpressibleError(f"heads of size {heads.head_dim} that turn cannot be widened to {target.head_dim}")
        _place(filled, heads, arrays, target)
    return nested(filled)


def _place(filled: dict[str, np.ndarray], heads: Kind, weights: Mapping[str, np.ndarray], target: Kind) -> None:
    """Write the heads' weights into the arrays of the target, and the ratio of scales into the queries."""
    ids = np.asarray(heads.ids)
    kv_heads = np.asarray(target.groups)[ids]
    for name in ("query", "key", "value"):
        sources, targets = (np.arange(len(ids)), ids) if name == "query" else (np.asarray(heads.groups), kv_heads)
        size = weights[name].shape[-1]
        filled[name][:, targets, :size] = weights[name][:, sources]
        bias = f"{name}_bias"
        if bias in weights and bias in filled:
            filled[bias][targets, :size] = weights[bias][sources]
    kernel = weights["output/kernel"]
    filled["output/kernel"][ids, : kernel.shape[1]] = kernel
    factor = heads.logit_scale / target.logit_scale
    if factor != 1.0 and "query_norm/scale" in filled:
        scale = filled["query_norm/scale"]
        norm = bind_arrays(heads.query_norm.module(len(scale)), {"scale": scale}).scaled(factor)
        filled["query_norm/scale"] = np.asarray(norm.scale[...], scale.dtype)
    elif factor != 1.0:
        for name in {"query", "query_bias"} & filled.keys():
            filled[name] = (filled[name] * factor).astype(filled[name].dtype)


def _kv_heads(num_heads: int, layers: Sequence[Kind]) -> int:
    """Return the fewest KV heads that equal groups of consecutive heads can share."""
    for count in (count for count in range(1, num_heads) if num_heads % count == 0):
        keys = [{(head * count // num_heads, key) for head, key in zip(a.ids, a.groups, strict=True)} for a in layers]
        if all(len(pairs) == len(dict(pairs)) for pairs in keys):  # one KV head in each group
            return count
    return num_heads
