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
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ml_collections import config_dict

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


def class_of_kind(name: str) -> Any:
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
    """Build a `cls` from JSON data, or from a `ConfigDict`."""
    try:
        return typing.cast(T, _build(cls, data, path))
    except RecursionError:
        raise ConfigError(f"{path}: nested too deep") from None


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


def unknown_name(what: str, name: object, known: Iterable[str]) -> str:
    """One line for an unknown name, with the nearest known one or all of them."""
    names, text = sorted(known), name if isinstance(name, str) else shown(name)
    name = text if len(text) <= 60 else f"{text[:60]}..."
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"
    return f"unknown {what} {name!r}; {hint}"


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _build(expected: Any, data: Any, path: str) -> Any:
    """Return the value of a declared type; single values are as given, and `Checked` compares them with their types."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (types.UnionType, typing.Union):
        return None if data is None else _build(arguments[0], data, path)  # a type or None
    if origin is tuple and isinstance(data, list | tuple):
        return _build_tuple(arguments, data, path)
    if origin is tuple and arguments[-1] is Ellipsis:
        return _build(arguments[0], data, path)  # one for all: the class spreads it
    if isinstance(expected, type) and (dataclasses.is_dataclass(expected) or kinds_of(expected)):
        return data if isinstance(data, expected) else _build_dataclass(expected, _group(data, path), path)
    return float(data) if expected is float and type(data) is int and abs(data) <= INTEGER_MAX else data


def _build_tuple(types_of: Sequence[Any], data: Sequence[Any], path: str) -> tuple[Any, ...]:
    """Return the items; of a tuple of any length each may stand for several equal ones."""
    if types_of[-1] is not Ellipsis:
        require(len(types_of) == len(data), path, f"expected {len(types_of)} items, got {len(data)}")
        pairs = zip(types_of, data, strict=True)
        return tuple(_build(item, entry, f"{path}[{number}]") for number, (item, entry) in enumerate(pairs))
    items: list[Any] = []
    for entry in data:
        where = f"{path}[{len(items)}]"
        run = entry if isinstance(entry, Mapping) and set(entry) == {"repeat", "item"} else {"repeat": 1, "item": entry}
        whole = type(run["repeat"]) is int and 1 <= run["repeat"] <= LISTED_MAX
        require(whole, f"{where}.repeat", f"expected an int from 1 to {LISTED_MAX:,}, got {shown(run['repeat'])}")
        items += [_build(types_of[0], run["item"], where)] * run["repeat"]
    return tuple(items)


def _build_dataclass(cls: type, data: dict[str, Any], path: str) -> Any:
    if "kind" in data:
        name, known = data.pop("kind"), kinds_of(cls)
        if not isinstance(name, str) or name not in known:
            raise ConfigError(f"{path}.kind: {unknown_name('kind', name, known)}")
        cls = _KINDS[name]
    elif not dataclasses.is_dataclass(cls) or getattr(cls, "__abstractmethods__", None):
        raise ConfigError(f"{path}.kind: missing; known: {', '.join(kinds_of(cls))}")
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for name in data:
        if name not in fields:
            raise ConfigError(f"{path}.{in_line(name)}: {unknown_name('field', name, fields)}")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        require(name in data or not required, f"{path}.{name}", "missing")
    values = {name: _build(_hints(cls)[name], entry, f"{path}.{name}") for name, entry in data.items()}
    with within(path):
        return cls(**values)


def _group(data: Any, path: str) -> dict[str, Any]:
    """Return the fields of a group; their names are text."""
    try:
        found = data.to_dict() if hasattr(data, "to_dict") else data  # a ConfigDict
    except config_dict.RequiredValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    require(isinstance(found, Mapping), path, f"expected a group of fields, got {shown(data)}")
    return {str(name): entry for name, entry in found.items()}
