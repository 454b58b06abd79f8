"""Entries of a `config.json` about positions that families share: rotary positions, windows, types of layers.

Rotary positions are `rope_parameters` of transformers 5, or `rope_theta` and `rope_scaling` of 4. Layers differ by
`layer_types` and sliding windows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headjax.hub.fields import Fields
from headjax.hub.table import Choice, Custom, Entry, Field, Fixed, flag, nullable, number, record, size, text
from headjax.nn.rotary import LinearScaling, Llama3Scaling, RotaryHalves, YarnScaling

_ORIGINAL = size("original_max_position_embeddings")


def _read_attention_factor(fields: Fields) -> float | None:
    """Read YaRN's factor of the logits' root: given, or as the quotient of DeepSeek's two numbers."""
    if fields.has("attention_factor"):
        return fields.number("attention_factor")
    scales = [fields.number(name, 0.0) for name in ("mscale", "mscale_all_dim")]
    if not all(scales):
        return None
    above, below = (1.0 + 0.1 * scale * math.log(max(_FACTOR.read(fields), 1.0)) for scale in scales)
    return above / below


def _ratio(rope: Fields) -> float:
    """Return YaRN's factor where it is null: the length over the original one."""
    if not rope.has("max_position_embeddings"):
        raise rope.error("factor", "missing")
    return rope.size("max_position_embeddings") / _ORIGINAL.read(rope)


_FACTOR = number("factor", _ratio)
_TYPE = text("rope_type", text("type", "default"))
_SCALING = Choice(
    _TYPE,
    {
        "default": Fixed(None),
        "linear": record(LinearScaling, factor=number("factor")),
        "llama3": record(
            Llama3Scaling,
            factor=number("factor"),
            low_frequency=number("low_freq_factor"),
            high_frequency=number("high_freq_factor"),
            original_length=_ORIGINAL,
        ),
        "yarn": record(
            YarnScaling,
            factor=_FACTOR,
            original_length=_ORIGINAL,
            fast=number("beta_fast", 32.0),
            slow=number("beta_slow", 1.0),
            whole_pairs=flag("truncate", True),
            attention_factor=Custom(
                _read_attention_factor,
                lambda factor: {} if factor is None else {"attention_factor": factor},
                name="attention_factor",
            ),
        ),
    },
)
_ROPE = record(RotaryHalves, base=number("rope_theta"), scaling=_SCALING)


def read_rotary(
    fields: Fields, name: str, parameters: Mapping[str, Any], base: float, head_dim: int | None = None
) -> RotaryHalves:
    """Read one object of rotary parameters; without the size of heads all of their dimensions have to turn."""
    rope = _object(fields, name, {"rope_theta": base} | _given(parameters))
    if rope.has("rope_type") and rope.text("type", rope.text("rope_type")) != rope.text("rope_type"):
        raise rope.error("type", f"{rope.text('type')!r} contradicts the rope_type {rope.text('rope_type')!r}")
    if head_dim is None:
        rope.only(_PART, [1.0], 1.0)
    rotary: RotaryHalves = _ROPE.read(rope)
    part = 1.0 if head_dim is None else rope.number(_PART, 1.0)
    if head_dim is None or part == 1.0:
        return rotary
    dim = int(head_dim * part)
    if dim % 2 or not 0 < dim <= head_dim:
        raise rope.error(_PART, f"{dim} of the {head_dim} dimensions of a head cannot turn in pairs")
    return dataclasses.replace(rotary, dim=dim)


def _object(fields: Fields, name: str, parameters: Mapping[str, Any]) -> Fields:
    """Return an object of rotary parameters with the config's lengths, as `transformers` completes it."""
    longest, original = (fields.data.get(key) for key in ("max_position_embeddings", _ORIGINAL.name))
    lengths = _given({"max_position_embeddings": longest, _ORIGINAL.name: longest})
    return Fields(lengths | _given(parameters) | _given({_ORIGINAL.name: original}), f"{fields.file}: {name}")


def _given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def write_rotary(rotary: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the object of rotary parameters, and its scaling alone as transformers 4 reads it."""
    parameters = _ROPE.write(rotary, "rotary")
    scaling = {name: value for name, value in parameters.items() if name != "rope_theta"}
    return parameters, None if rotary.scaling is None else scaling


def check_base(fields: Fields, name: str, base: float, rotary: RotaryHalves) -> None:
    """Raise `ConfigError` if the config gives a base in a field of its own and another one in `rope_parameters`."""
    if fields.has(name) and rotary.base != base:
        raise fields.error(name, f"{base} contradicts the {rotary.base} in rope_parameters")


def rotary(
    base: float = 10000.0, *, theta: str = "rope_theta", part: Field | None = None, head_dim: Entry | None = None
) -> Custom:
    """Return the entry of rotary positions that layers share: `part` is the share of `head_dim` that turns."""

    def read(fields: Fields) -> RotaryHalves:
        first, whole = fields.number(theta, base), None if head_dim is None else head_dim.read(fields)
        objects = {name: fields.group(name) for name in _OBJECTS if fields.group(name)} or {"rope_scaling": {}}
        turning = {} if part is None else {_PART: part.read(fields)}
        found = [read_rotary(fields, name, turning | _given(own), first, whole) for name, own in objects.items()]
        if len(set(found)) > 1:
            raise fields.error("rope_scaling", "contradicts rope_parameters; keep one of the two")
        check_base(fields, theta, first, found[0])
        return found[0]

    def write(rotary: Any) -> Mapping[str, Any]:
        parameters, scaling = write_rotary(rotary)
        return {theta: rotary.base, "rope_scaling": scaling, "rope_parameters": parameters}

    return Custom(read, write)


def written_part(attention: Any, part: Field) -> dict[str, Any]:
    """Return the fields of an attention's rotary positions with the share of dimensions that turn."""
    (parameters, _), dim = write_rotary(attention.rotary), attention.rotary.dim
    share = 1.0 if dim is None else dim / attention.head_dim
    return {"rope_parameters": parameters | {_PART: share}, part.name: share}


_OBJECTS, _PART = ("rope_parameters", "rope_scaling"), "partial_rotary_factor"


def _read_positions(fields: Fields) -> int | None:
    """Read the number of positions; configs that YaRN was added to may still give the one before."""
    if not fields.has("max_position_embeddings"):
        return None
    longest = fields.size("max_position_embeddings")
    objects = [fields.group(name) for name in _OBJECTS]
    for parameters in [*objects, *(entry for each in objects for entry in each.values() if isinstance(entry, Mapping))]:
        rope = _object(fields, _OBJECTS[0], parameters)
        if _TYPE.read(rope) == "yarn":
            longest = max(longest, int(rope.number("factor", 1.0) * _ORIGINAL.read(rope)))
    return longest


POSITIONS = Custom(
    _read_positions,
    lambda longest: {} if longest is None else {"max_position_embeddings": longest},
    name="max_position_embeddings",
)
"""Length of the longest sequence; None where the config does not say."""

FULL, SLIDING = "full_attention", "sliding_attention"


def window(default: int | None = None) -> Custom:
    """Return the entry of a layer's window."""
    return nullable("sliding_window", default, Fields.size)


def read_layer_types(fields: Fields, count: int, default: Callable[[int], str]) -> list[str]:
    """Read the type of each layer."""
    types = fields.data.get("layer_types")
    if types is None:
        return [default(number) for number in range(count)]
    if not isinstance(types, list) or len(types) != count:
        raise fields.error("layer_types", f"expected a list of {count} types, one per layer, got {types!r}")
    for kind in types:
        if kind not in (FULL, SLIDING):
            raise fields.unsupported("layer_types", kind, (FULL, SLIDING))
    return types


def types_and_window(written: Sequence[Mapping[str, Any]]) -> tuple[list[str], int | None]:
    """Return the type of each layer that was written with these fields, and the first window that any has."""
    windows = [layer["sliding_window"] for layer in written]
    types = [FULL if window is None else SLIDING for window in windows]
    return types, next((window for window in windows if window is not None), None)


def common(written: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields that any layer was written with; where layers differ, the first one's value."""
    return {name: value for fields in reversed(written) for name, value in fields.items()}


def windows_from(
    fields: Fields, count: int, sliding: Callable[[int], bool], default: int | None = None
) -> list[dict[str, Any]]:
    """Read each layer's own `sliding_window`, of a family with the field `use_sliding_window`."""
    used = fields.flag("use_sliding_window", False)
    width = window(default).read(fields) if used else None
    types = read_layer_types(fields, count, lambda number: SLIDING if width is not None and sliding(number) else FULL)
    if width is None and SLIDING in types:
        said = "sliding_window is null" if used else "use_sliding_window is false"
        raise fields.error("layer_types", f"layer {types.index(SLIDING)} is {SLIDING!r}, but {said}")
    return own_windows(types, width)


def own_windows(types: Sequence[str], window: int | None) -> list[dict[str, Any]]:
    """Return the `sliding_window` of each layer of these types."""
    return [{"sliding_window": window if kind == SLIDING else None} for kind in types]


def windows_to(written: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Write the windows of layers: the inverse of `windows_from`."""
    types, window = types_and_window(written)
    own = {"layer_types": types, "use_sliding_window": window is not None, "sliding_window": window}
    return common(written) | own


def of_layer(name: str) -> Custom:
    """Return the entry of a value that a layer alone has, under a name that no file has."""
    return Custom(lambda fields: fields.data[name], lambda value: {name: value})


TURNING = of_layer("rotary")
"""The rotary positions of a layer, where they follow from its type."""

Bases = Mapping[str, Field]
"""The rotary base of each type of layer: its field in transformers 4."""


def _read_typed(fields: Fields, kind: str, bases: Bases) -> RotaryHalves:
    """Read the rotary positions of a type of layer: its object in `rope_parameters`, or transformers 4's fields."""
    nested = fields.group("rope_parameters")
    if nested and not {*nested} <= {*bases}:
        known = " and ".join(bases)
        raise fields.error("rope_parameters", f"expected one object for each of {known}, got {sorted(nested)}")
    parameters = Fields(nested, f"{fields.file}: rope_parameters").group(kind)
    base = bases[kind].read(fields)
    old = fields.group("rope_scaling") if kind == FULL else {}
    found = read_rotary(fields, f"rope_parameters: {kind}", {**old, **parameters}, base)
    check_base(fields, bases[kind].name, base, found)
    if old and parameters and found != read_rotary(fields, "rope_scaling", {**parameters, **old}, base):
        raise fields.error("rope_scaling", f"contradicts rope_parameters: {kind}; keep one of the two")
    return found


def turning_by_type(
    fields: Fields, types: Sequence[str], layers: Sequence[Mapping[str, Any]], bases: Bases
) -> list[dict[str, Any]]:
    """Return the own fields of layers of these types with their rotary positions."""
    turning = {kind: _read_typed(fields, kind, bases) for kind in {*types}}
    return [{**layer, "rotary": turning[kind]} for layer, kind in zip(layers, types, strict=True)]


def typed_fields(written: Sequence[Mapping[str, Any]], bases: Bases) -> tuple[dict[str, Any], list[str]]:
    """Write layers that `turning_by_type` read, with the first window that any has; return their types too."""
    types, window = types_and_window(written)
    fields = common(written) | {"layer_types": types, "rope_parameters": {}, "rope_scaling": None}
    fields["sliding_window"] = window
    del fields["rotary"]
    for kind in sorted({*types}):
        parameters, scaling = write_rotary(written[types.index(kind)]["rotary"])
        fields["rope_parameters"][kind] = parameters
        fields[bases[kind].name] = parameters["rope_theta"]
        if kind == FULL:
            fields["rope_scaling"] = scaling
    return fields, types
