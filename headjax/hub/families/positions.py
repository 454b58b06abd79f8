"""Entries of a `config.json` about positions that families share: rotary positions, windows, types of layers.

Rotary positions are `rope_parameters` of transformers 5, or `rope_theta` and `rope_scaling` of 4. Layers differ by
`layer_types` and sliding windows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headjax.hub.fields import Fields
from headjax.hub.table import Choice, Custom, Entry, Field, Fixed, flag, nullable, number, record, size, text
from headjax.nn.rotary import LinearScaling, Llama3Scaling, RotaryHalves, YarnScaling

_ORIGINAL = size("original_max_position_embeddings")


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
            factor=number("factor"),
            original_length=_ORIGINAL,
            fast=number("beta_fast", 32.0),
            slow=number("beta_slow", 1.0),
            whole_pairs=flag("truncate", True),
            attention_factor=nullable("attention_factor", None, Fields.number),
        ),
    },
)
_ROPE = record(RotaryHalves, base=number("rope_theta"), scaling=_SCALING)


def read_rotary(
    fields: Fields, name: str, parameters: Mapping[str, Any], base: float, head_dim: int | None = None
) -> RotaryHalves:
    """Read one object of rotary parameters; without the size of heads all of their dimensions have to turn."""
    rope = _object(fields, name, {"rope_theta": base} | _given(parameters))
    rope.only("mscale", [None], None)
    if head_dim is None:
        rope.only(_PART, [1.0], 1.0)
    rotary: RotaryHalves = _ROPE.read(rope)
    part = rope.number(_PART, 1.0)
    if head_dim is None or part == 1.0:
        return rotary
    dim = int(head_dim * part)
    if dim % 2 or not 0 < dim <= head_dim:
        raise rope.error(_PART, f"{dim} of the {head_dim} dimensions of a head cannot turn in pairs")
    return dataclasses.replace(rotary, dim=dim)


def _object(fields: Fields, name: str, parameters: Mapping[str, Any]) -> Fields:
    """Return rotary parameters as fields, with `max_position_embeddings` as their original length if they lack it."""
    length = _given({_ORIGINAL.name: fields.data.get("max_position_embeddings")})
    return Fields(length | _given(parameters), f"{fields.file}: {name}")


def _shared(fields: Fields, name: str) -> dict[str, Any]:
    """Return the rotary parameters of all layers; Phi-3 has their original length beside them."""
    return _given(fields.group(name)) | _given({_ORIGINAL.name: fields.data.get(_ORIGINAL.name)})


def _given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def write_rotary(rotary: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the object of rotary parameters, and its scaling alone as transformers 4 reads it."""
    parameters = _ROPE.write(rotary, "rotary")
    scaling = {name: value for name, value in parameters.items() if name != "rope_theta"}
    return parameters, None if rotary.scaling is None else scaling


def rotary(
    base: float = 10000.0, *, theta: str = "rope_theta", part: Field | None = None, head_dim: Entry | None = None
) -> Custom:
    """Return the entry of rotary positions that layers share: `part` is the share of `head_dim` that turns."""

    def read(fields: Fields) -> RotaryHalves:
        whole = None if head_dim is None else head_dim.read(fields)
        name = next((name for name in _OBJECTS if fields.group(name)), _OBJECTS[0])  # in the order of transformers
        turning = {} if part is None else {_PART: part.read(fields)}
        return read_rotary(fields, name, turning | _shared(fields, name), fields.number(theta, base), whole)

    def write(rotary: Any) -> Mapping[str, Any]:
        parameters, scaling = write_rotary(rotary)
        return {theta: rotary.base, "rope_scaling": scaling, "rope_parameters": parameters}

    return Custom(read, write)


def written_part(attention: Any, part: Field) -> dict[str, Any]:
    """Return the fields of an attention's rotary positions with the share of dimensions that turn."""
    (parameters, _), dim = write_rotary(attention.rotary), attention.rotary.dim
    share = 1.0 if dim is None else dim / attention.head_dim
    return {"rope_parameters": parameters | {_PART: share}, part.name: share}


_OBJECTS, _PART = ("rope_scaling", "rope_parameters"), "partial_rotary_factor"


def _read_positions(fields: Fields) -> int | None:
    """Read the number of positions; configs that YaRN was added to may still give the one before."""
    if not fields.has("max_position_embeddings"):
        return None
    longest = fields.size("max_position_embeddings")
    for name in _OBJECTS:
        rope = _object(fields, name, _shared(fields, name))
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


def of_layer(name: str) -> Custom:
    """Return the entry of a value that a layer alone has, under a name that no file has."""
    return Custom(lambda fields: fields.data[name], lambda value: {name: value})


TURNING = of_layer("rotary")
"""The rotary positions of a layer, where they follow from its type."""


@dataclasses.dataclass(frozen=True)
class LayerTypes:
    """Layers of two types, by `layer_types`: some have a window, and with `bases` rotary positions of their own."""

    slides: Callable[[Fields, int], bool]  # of a layer's number, where no types are listed
    width: Entry  # the window, which any layer may have
    bases: Mapping[str, Field] = dataclasses.field(default_factory=dict)  # fields of transformers 4 by type

    def spread(self, fields: Fields, count: int) -> list[dict[str, Any]]:
        """Return each layer's own fields."""
        width, types = self.width.read(fields), fields.data.get("layer_types")
        if types is None:
            types = [SLIDING if self.slides(fields, number) else FULL for number in range(count)]
        if not isinstance(types, list) or len(types) != count:
            raise fields.error("layer_types", f"expected a list of {count} types, one per layer, got {types!r}")
        for kind in types:
            if kind not in (FULL, SLIDING):
                raise fields.unsupported("layer_types", kind, (FULL, SLIDING))
        if width is None and SLIDING in types:
            raise fields.error("sliding_window", f"missing, but layer {types.index(SLIDING)} is {SLIDING!r}")
        turning = {kind: {"rotary": self._rotary(fields, kind)} for kind in {*types}} if self.bases else {}
        return [{"sliding_window": width if kind == SLIDING else None, **turning.get(kind, {})} for kind in types]

    def gather(self, written: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the config's fields; of those that layers have in common the first one's value."""
        values = {name: value for fields in reversed(written) for name, value in fields.items()}
        windows = [layer["sliding_window"] for layer in written]
        types = [FULL if window is None else SLIDING for window in windows]
        del values["sliding_window"]
        values |= self.width.write(next((window for window in windows if window is not None), None), "window")
        if self.bases:
            del values["rotary"]
            values |= {"rope_parameters": {}, "rope_scaling": None}
        for kind in sorted({*types}) if self.bases else ():
            parameters, scaling = write_rotary(written[types.index(kind)]["rotary"])
            values["rope_parameters"][kind] = parameters
            values[self.bases[kind].name] = parameters["rope_theta"]
            if kind == FULL:
                values["rope_scaling"] = scaling
        return values | {"layer_types": types}

    def _rotary(self, fields: Fields, kind: str) -> RotaryHalves:
        """Read the rotary positions of a type of layer: its object in `rope_parameters`, or transformers 4's fields."""
        nested = fields.group("rope_parameters")
        if nested and not {*nested} <= {*self.bases}:
            known = " and ".join(self.bases)
            raise fields.error("rope_parameters", f"expected one object for each of {known}, got {sorted(nested)}")
        parameters = Fields(nested, f"{fields.file}: rope_parameters").group(kind)
        old = fields.group("rope_scaling") if kind == FULL else {}
        return read_rotary(fields, f"rope_parameters: {kind}", {**parameters, **old}, self.bases[kind].read(fields))
