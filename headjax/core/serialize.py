"""Frozen dataclasses to JSON and back; unknown, missing and wrongly typed fields are errors that name their path.

A field typed as an abstract base class holds one of its registered kinds, distinguished in JSON by the key `kind`. A
tuple of dataclasses is written run by run (`{"repeat": 12, "item": {...}}`), so that a stack of equal layers reads as
one.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from headjax.core.errors import ConfigError, in_line, require, within
from headjax.core.fields import INTEGER_MAX, LISTED_MAX, shown

T = TypeVar("T")

_KINDS: dict[str, type] = {}


def kind(name: str) -> Callable[[type[T]], type[T]]:
    """Class decorator: registers a dataclass under the name it carries in JSON."""

    def register(cls: type[T]) -> type[T]:
        before = _KINDS.get(name, cls)
        if (before.__module__, before.__qualname__) != (cls.__module__, cls.__qualname__):  # a file may be read again
            raise RuntimeError(f"kind {name!r} is registered twice")
        _KINDS[name] = cls
        cls._kind = name  # type: ignore[attr-defined]
        return cls

    return register


def kind_of(value: object) -> str:
    """The registered name of a dataclass instance."""
    return str(type(value)._kind)  # type: ignore[attr-defined]


def kinds_of(base: type) -> list[str]:
    """Names of the registered kinds that are subclasses of `base`, sorted."""
    return sorted(name for name, cls in _KINDS.items() if issubclass(cls, base))


def group_fields(expected: Any, name: str | None = None) -> dict[str, Any]:
    """Return the fields of a group of type `expected`, by name, with their types; none where it is no group.

    Args:
        expected: the type that the group's field is declared with.
        name: the group's kind, or None where none is given.
    """
    options = [option for option in typing.get_args(expected) or (expected,) if option is not type(None)]
    cls: Any = _KINDS.get(name, options[0]) if name is not None else options[0]
    if not dataclasses.is_dataclass(cls):
        return {}
    hints = _hints(typing.cast(type, cls))
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def is_group(expected: Any) -> bool:
    """Whether a field declared with this type holds a group of fields."""
    options = [option for option in typing.get_args(expected) or (expected,) if option is not type(None)]
    return len(options) == 1 and isinstance(options[0], type) and bool(group_fields(expected) or kinds_of(options[0]))


def class_of_kind(name: str) -> type:
    """The class that is registered under a name."""
    return _KINDS[name]


def to_data(value: Any) -> Any:
    """The value as JSON data, every field written out, so that a later change of a default changes no saved model."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        data: dict[str, Any] = {"kind": kind_of(value)} if hasattr(type(value), "_kind") else {}
        for field in dataclasses.fields(value):
            if field.init:
                data[field.name] = to_data(getattr(value, field.name))
        return data
    if isinstance(value, tuple | list):
        if any(dataclasses.is_dataclass(item) for item in value):
            runs = ((item, len(list(group))) for item, group in itertools.groupby(value))
            return [{"repeat": count, "item": to_data(item)} for item, count in runs]
        return [to_data(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_data(entry) for key, entry in value.items()}
    return value


def from_data(cls: type[T], data: Any, path: str = "config") -> T:
    """Build a `cls` from JSON data.

    Raises:
        ConfigError: an unknown or missing field, a value of the wrong type, or whatever the dataclass itself refuses.
    """
    return typing.cast(T, _build(cls, plain(data, path), path))


NESTED_MAX = 100
"""Deepest nesting of a config's lists and groups."""


def plain(data: Any, path: str, depth: int = 0) -> Any:
    """Return data in the types that JSON has, with configs that are built already as they are.

    The source of a config may hold any object. An object that belongs in no config is refused here, by its type alone.

    Raises:
        ConfigError: another type, a name of a field that is not text, a value that cannot be read, or nesting without
            end; the message starts with its path.
    """
    cls = type(data)
    if data is None or cls in _PLAIN or dataclasses.is_dataclass(cls):
        return data
    for base, value_of in _PLAIN.items():
        if issubclass(cls, base):
            return value_of(data)
    require(depth < NESTED_MAX, f"{path[:60]}...", "nested too deep")
    if issubclass(cls, list | tuple):
        return [plain(entry, f"{path}[{number}]", depth + 1) for number, entry in enumerate(data)]
    if not all(hasattr(cls, name) for name in ("keys", "__getitem__", "__iter__")):
        raise ConfigError(f"{path}: expected numbers, text, lists or groups of fields, got {shown(data)}")
    found = {}
    for name in _readable(path, list, data):
        require(issubclass(type(name), str), path, f"the names of fields must be text, got {shown(name)}")
        where = f"{path}.{name}"
        found[str.__str__(name)] = plain(_readable(where, data.__getitem__, name), where, depth + 1)
    return found


def _readable(path: str, read: Callable[[Any], Any], place: Any) -> Any:
    """Return `read(place)`, which may fail: a placeholder of `ml_collections` may still be open."""
    try:
        return read(place)
    except Exception as error:
        raise ConfigError(f"{path}: cannot be read ({type(error).__name__})") from None


_PLAIN: dict[type, Callable[[Any], Any]] = {
    bool: bool,
    int: int.__index__,
    float: float.__float__,
    str: str.__str__,
}
"""Types of single values, with the conversion of an object of a subclass."""


def foreign_modules(value: Any) -> set[str]:
    """Return the names of the modules outside headjax that define kinds of a value."""
    if isinstance(value, tuple | list):
        return set().union(*map(foreign_modules, value))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return set()
    name = type(value).__module__
    own = {name} if hasattr(type(value), "_kind") and name.partition(".")[0] != "headjax" else set()
    return own.union(*(foreign_modules(getattr(value, field.name)) for field in dataclasses.fields(value)))


def dumps(value: Any) -> str:
    """The value as indented JSON text."""
    return json.dumps(to_data(value), indent=2) + "\n"


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """One line for an unknown name, with the nearest known one or all of them."""
    names = sorted(known)
    name = name if len(name) <= 60 else f"{name[:60]}..."
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"
    return f"unknown {what} {name!r}; {hint}"


def _named(value: Any) -> str:
    """Return the name that stands where one was expected, or a description of the other value."""
    return value if isinstance(value, str) else shown(value)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _build(expected: Any, data: Any, path: str) -> Any:
    origin = typing.get_origin(expected)
    if expected is Any:
        return data
    if origin in (types.UnionType, typing.Union):
        options = [option for option in typing.get_args(expected) if option is not type(None)]
        if data is None and len(options) < len(typing.get_args(expected)):
            return None
        if len(options) == 1:
            return _build(options[0], data, path)
        raise TypeError(f"{path}: ambiguous union {expected}")
    if origin is tuple:
        return _build_tuple(typing.get_args(expected), data, path)
    if origin is typing.Literal:
        if data not in typing.get_args(expected):
            raise ConfigError(f"{path}: {unknown_name('choice', _named(data), map(str, typing.get_args(expected)))}")
        return data
    if origin in (dict, Mapping) or origin is getattr(typing, "Mapping", None):
        value_type = typing.get_args(expected)[1]
        return {str(key): _build(value_type, entry, f"{path}.{key}") for key, entry in _mapping(data, path).items()}
    if isinstance(expected, type) and (dataclasses.is_dataclass(expected) or kinds_of(expected)):
        return _build_dataclass(expected, data, path)
    return _build_scalar(expected, data, path)


def _build_tuple(item_types: Sequence[Any], data: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(data, list | tuple):
        raise ConfigError(f"{path}: expected a list, got {shown(data)}")
    if len(item_types) == 2 and item_types[1] is Ellipsis:
        items: list[Any] = []
        for entry in data:
            if isinstance(entry, Mapping) and set(entry) == {"repeat", "item"}:
                item = _build(item_types[0], entry["item"], f"{path}[{len(items)}]")
                count = _build_scalar(int, entry["repeat"], f"{path}[{len(items)}].repeat")
                where = f"{path}[{len(items)}].repeat"
                require(count >= 1, where, f"must be at least 1, got {shown(count)}")
                require(
                    len(items) + count <= LISTED_MAX,
                    where,
                    f"more than {LISTED_MAX:,} items in all, got {shown(count)}",
                )
                items.extend([item] * count)
            else:
                items.append(_build(item_types[0], entry, f"{path}[{len(items)}]"))
        return tuple(items)
    if len(item_types) != len(data):
        raise ConfigError(f"{path}: expected {len(item_types)} items, got {len(data)}")
    return tuple(
        _build(item, entry, f"{path}[{i}]") for i, (item, entry) in enumerate(zip(item_types, data, strict=True))
    )


def _build_dataclass(expected: type, data: Any, path: str) -> Any:
    if dataclasses.is_dataclass(data) and isinstance(data, expected):
        return data
    data = dict(_mapping(data, path))
    cls = expected
    if "kind" in data:
        name = data.pop("kind")
        if not isinstance(name, str) or name not in kinds_of(expected):
            raise ConfigError(f"{path}.kind: {unknown_name('kind', _named(name), kinds_of(expected))}")
        cls = _KINDS[name]
    elif not dataclasses.is_dataclass(expected) or getattr(expected, "__abstractmethods__", None):
        raise ConfigError(f"{path}.kind: missing; known: {', '.join(kinds_of(expected))}")
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for name in data:
        if name not in fields:
            raise ConfigError(f"{path}.{in_line(name)}: {unknown_name('field', name, fields)}")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in data:
            raise ConfigError(f"{path}.{name}: missing")
    hints = _hints(cls)
    values = {name: _build(hints[name], entry, f"{path}.{name}") for name, entry in data.items()}
    with within(path):
        return cls(**values)


def _build_scalar(expected: Any, data: Any, path: str) -> Any:
    if expected is float and isinstance(data, int) and not isinstance(data, bool):
        require(abs(data) <= INTEGER_MAX, path, f"must be below 2**63 in size, got {shown(data)}")
        return float(data)
    if not isinstance(data, expected) or (expected is not bool and isinstance(data, bool)):
        raise ConfigError(f"{path}: expected {expected.__name__}, got {shown(data)}")
    require(not isinstance(data, float) or math.isfinite(data), path, f"must be finite, got {shown(data)}")
    return data


def _mapping(data: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path}: expected a group of fields, got {shown(data)}")
    return data
