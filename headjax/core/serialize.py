"""Frozen dataclasses to JSON and back; unknown, missing and wrongly typed fields are errors that name their path.

Where a field can hold several registered classes, the key `kind` tells them apart. A tuple of groups is written run by
run (`{"repeat": 12, "item": {...}}`), so that a stack of equal layers reads as one.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from headjax.core.errors import ConfigError, in_line, require, within
from headjax.core.fields import INTEGER_MAX, LISTED_MAX, options_of, shown, unknown_name
from headjax.core.kind import Kind

T = TypeVar("T")

_KINDS: dict[str, type] = {}


def kind(name: str) -> Callable[[type[T]], type[T]]:
    """Class decorator: registers a dataclass, or a class of modules, under the name it carries in JSON."""

    def register(cls: type[T]) -> type[T]:
        before = _KINDS.get(name, cls)
        if (before.__module__, before.__qualname__) != (cls.__module__, cls.__qualname__):  # a file may be read again
            raise RuntimeError(f"kind {name!r} is registered twice")
        _KINDS[name] = cls
        cls._kind = name  # type: ignore[attr-defined]
        return cls

    return register


def kind_of(value: object) -> str:
    """The registered name of a dataclass instance or of a `Kind`."""
    return str(class_of(value)._kind)


def kinds_of(base: type) -> list[str]:
    """Names of the registered kinds that are subclasses of `base`, or that a `Kind` can have, sorted."""
    classes = {name: cls if dataclasses.is_dataclass(cls) else Kind for name, cls in _KINDS.items()}
    return sorted(name for name, cls in classes.items() if issubclass(cls, base))


def class_of_kind(name: str) -> Any:
    """The class that is registered under a name."""
    return _KINDS[name]


def has_kind(value: object) -> bool:
    """Whether a value is of a registered kind."""
    return hasattr(class_of(value), "_kind")


def class_of(value: object) -> Any:
    """The class of a value, or the one that a `Kind` is of."""
    return value.of if isinstance(value, Kind) else type(value)


def make(cls: Any, values: Mapping[str, Any]) -> Any:
    """An instance of a dataclass, or a `Kind` of another class, with these fields."""
    build: Any = cls if dataclasses.is_dataclass(cls) else functools.partial(Kind, cls)
    return build(**values)


def is_group(value: object) -> bool:
    """Whether a value has fields: a dataclass instance or a `Kind`."""
    return isinstance(value, Kind) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def to_data(value: Any) -> Any:
    """The value as JSON data, every field written out, so that a later change of a default changes no saved model."""
    if is_group(value):
        data: dict[str, Any] = {"kind": kind_of(value)} if has_kind(value) else {}
        return data | {name: to_data(getattr(value, name)) for name in options_of(class_of(value))}
    if isinstance(value, tuple | list):
        if any(map(is_group, value)):
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
    if not is_group(value):
        return set()
    name = class_of(value).__module__
    foreign = {name} if has_kind(value) and name.partition(".")[0] != "headjax" else set()
    return foreign.union(*(foreign_modules(getattr(value, field)) for field in options_of(class_of(value))))


def dumps(value: Any) -> str:
    """The value as indented JSON text."""
    return json.dumps(to_data(value), indent=2) + "\n"


def _build(expected: Any, data: Any, path: str) -> Any:
    """Return the value of a declared type; single values are as given, and `Checked` compares them with their types."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin is Annotated:
        return _build(arguments[0], data, path)
    if origin in (types.UnionType, typing.Union):
        return None if data is None else _build(arguments[0], data, path)  # a type or None
    if origin is tuple and isinstance(data, list | tuple):
        return _build_tuple(arguments, data, path)
    if origin is tuple and arguments[-1] is Ellipsis:
        return _build(arguments[0], data, path)  # one for all: the class spreads it
    if isinstance(expected, type) and (dataclasses.is_dataclass(expected) or kinds_of(expected)):
        return data if isinstance(data, expected) else _build_group(expected, data, path)
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
        usable = type(run["repeat"]) is int and 1 <= run["repeat"] <= LISTED_MAX
        require(usable, f"{where}.repeat", f"expected an int from 1 to {LISTED_MAX:,}, got {shown(run['repeat'])}")
        items += [_build(types_of[0], run["item"], where)] * run["repeat"]
    return tuple(items)


def _build_group(cls: type, data: Any, path: str) -> Any:
    if hasattr(data, "to_dict"):  # a ConfigDict, whose fields may still be to be filled
        from ml_collections import config_dict

        try:
            data = data.to_dict()
        except config_dict.RequiredValueError as error:
            raise ConfigError(f"{path}: {error}") from None
    require(isinstance(data, Mapping), path, f"expected a group of fields, got {shown(data)}")
    data = {str(name): entry for name, entry in data.items()}
    if "kind" in data:
        name, kinds = data.pop("kind"), kinds_of(cls)
        if not isinstance(name, str) or name not in kinds:
            raise ConfigError(f"{path}.kind: {unknown_name('kind', name, kinds)}")
        cls = _KINDS[name]
    elif not dataclasses.is_dataclass(cls) or getattr(cls, "__abstractmethods__", None):
        raise ConfigError(f"{path}.kind: missing; known: {', '.join(kinds_of(cls))}")
    fields = options_of(cls)
    for name in data:
        if name not in fields:
            raise ConfigError(f"{path}.{in_line(name)}: {unknown_name('field', name, fields)}")
    for name, field in fields.items():
        require(name in data or field.default is not dataclasses.MISSING, f"{path}.{name}", "missing")
    values = {name: _build(fields[name].type, entry, f"{path}.{name}") for name, entry in data.items()}
    with within(path):
        return make(cls, values)
