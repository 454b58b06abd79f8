"""Layers that differ in a `config.json`: `layer_types`, sliding windows and layers without positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headjax.hub.fields import Fields
from headjax.hub.table import Custom

FULL, SLIDING = "full_attention", "sliding_attention"


def window(default: int | None = None) -> Custom:
    """Return the entry of a layer's window; null is no window. `default` counts where there is no field."""
    return Custom(
        lambda fields: _read_window(fields, default), lambda window: {"sliding_window": window}, name="sliding_window"
    )


def _read_window(fields: Fields, default: int | None) -> int | None:
    return None if fields.data.get("sliding_window", default) is None else fields.size("sliding_window", default or 0)


def read_layer_types(fields: Fields, count: int, default: Callable[[int], str]) -> list[str]:
    """Read the type of each layer.

    Args:
        fields: the config.
        count: number of layers.
        default: type of the layer of a number, where the config has no list.

    Raises:
        ConfigError: the list has another length, or a type that is not supported.
    """
    types = fields.data.get("layer_types")
    if types is None:
        return [default(number) for number in range(count)]
    if not isinstance(types, list) or len(types) != count:
        raise fields.error("layer_types", f"expected a list of {count} types, one per layer, got {types!r}")
    for kind in types:
        if kind not in (FULL, SLIDING):
            raise fields.unsupported("layer_types", kind, (FULL, SLIDING))
    return types


def layer_type(written: Mapping[str, Any]) -> str:
    """Return the type of a layer that was written with these fields."""
    return FULL if written["sliding_window"] is None else SLIDING


def common(written: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields that any layer was written with; where layers differ, the first one's value."""
    return {name: value for fields in reversed(written) for name, value in fields.items()}


def windows_from(
    fields: Fields, count: int, sliding: Callable[[int], bool], default: int | None = None
) -> list[dict[str, Any]]:
    """Read each layer's own `sliding_window`, of a family with the field `use_sliding_window`.

    Args:
        fields: the config.
        count: number of layers.
        sliding: whether the layer of a number has the window, where the config does not list types.
        default: the window where the config has no field.

    Raises:
        ConfigError: a layer slides and there is no window.
    """
    used = fields.flag("use_sliding_window", False)
    window = _read_window(fields, default) if used else None
    types = read_layer_types(fields, count, lambda number: SLIDING if window is not None and sliding(number) else FULL)
    if window is None and SLIDING in types:
        said = "sliding_window is null" if used else "use_sliding_window is false"
        raise fields.error("layer_types", f"layer {types.index(SLIDING)} is {SLIDING!r}, but {said}")
    return own_windows(types, window)


def own_windows(types: Sequence[str], window: int | None) -> list[dict[str, Any]]:
    """Return the `sliding_window` of each layer of these types."""
    return [{"sliding_window": window if kind == SLIDING else None} for kind in types]


def windows_to(written: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Write the windows of layers: the inverse of `windows_from`."""
    types = [layer_type(fields) for fields in written]
    windows = [fields["sliding_window"] for fields in written if fields["sliding_window"] is not None]
    found = {
        "layer_types": types,
        "use_sliding_window": bool(windows),
        "sliding_window": windows[0] if windows else None,
    }
    return common(written) | found
