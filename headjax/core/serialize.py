"""Frozen dataclasses to JSON and back, and in words; errors in fields name their path.

Where a field can hold several registered classes, the key `kind` tells them apart. A tuple of groups is written run by
run (`{"repeat": 12, "item": {...}}`), so that a stack of equal layers reads as one.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

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
    return sorted(n for n, cls in _KINDS.items() if issubclass(cls if dataclasses.is_dataclass(cls) else Kind, base))


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
    build: Any = cls
    return build(**values) if dataclasses.is_dataclass(cls) else Kind(cls, **values)


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
        return tuple(_build_items(arguments, data, path))
    if origin is tuple and arguments[-1] is Ellipsis:
        return _build(arguments[0], data, path)  # one for all: the class spreads it
    if isinstance(expected, type) and (dataclasses.is_dataclass(expected) or kinds_of(expected)):
        return data if isinstance(data, expected) else _build_group(expected, data, path)
    return float(data) if expected is float and type(data) is int and abs(data) <= INTEGER_MAX else data


def _build_items(types_of: Sequence[Any], data: Sequence[Any], path: str) -> list[Any]:
    """Return the items of a tuple; of one of any length each may stand for several equal ones."""
    if types_of[-1] is not Ellipsis:
        require(len(types_of) == len(data), path, f"expected {len(types_of)} items, got {len(data)}")
        pairs = zip(types_of, data, strict=True)
        return [_build(item, entry, f"{path}[{number}]") for number, (item, entry) in enumerate(pairs)]
    items: list[Any] = []
    for entry in data:
        where = f"{path}[{len(items)}]"
        run = entry if isinstance(entry, Mapping) and set(entry) == {"repeat", "item"} else {"repeat": 1, "item": entry}
        usable = type(run["repeat"]) is int and 1 <= run["repeat"] <= LISTED_MAX
        require(usable, f"{where}.repeat", f"expected an int from 1 to {LISTED_MAX:,}, got {shown(run['repeat'])}")
        items += [_build(types_of[0], run["item"], where)] * run["repeat"]
    return items


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


_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):\n", re.MULTILINE)


class Docstring(NamedTuple):
    """The text of a docstring before its sections, and what they say of arguments and attributes, by name."""

    text: str
    meanings: Mapping[str, str]


def parse_docstring(docstring: str | None) -> Docstring:
    """Return the parts of a docstring in Google's style."""
    text, *parts = _SECTION.split(inspect.cleandoc(docstring or "") + "\n")
    meanings: dict[str, str] = {}
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        for entry in re.split(r"\n(?=\S)", inspect.cleandoc("\n" + body)) if title in ("Args", "Attributes") else ():
            names, _, meaning = entry.partition(": ")
            meanings |= {name.strip("` "): inspect.cleandoc(meaning) for name in names.split(", ")}
    return Docstring(text.strip(), meanings)


class ConfigField(NamedTuple):
    """A field of a config: its type with bounds, its default (`MISSING` where it is required), and its meaning."""

    name: str
    hint: Any
    default: Any
    meaning: str


MISSING = dataclasses.MISSING


def config_fields(cls: Any) -> list[ConfigField]:
    """Return the fields of a config class, or the options of a class of modules, that a config can set."""
    meanings: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        meanings |= parse_docstring(each.__dict__.get("__doc__")).meanings
    options = {} if inspect.isabstract(cls) and not dataclasses.is_dataclass(cls) else options_of(cls)
    return [ConfigField(name, *option, meanings.get(name, "")) for name, option in options.items()]


def groups_in(hint: Any) -> list[type]:
    """Return the config classes that a declared type names."""
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or kinds_of(hint)):
        return [hint]
    return [group for part in typing.get_args(hint) for group in groups_in(part)]


PLAIN = {int: "integer", float: "number", bool: "true or false", str: "text", type(None): "none", Any: "anything"}
"""Words for plain types."""


def in_words(hint: Any, group: Callable[[type], str], quote: str = "") -> str:
    """Return a declared type with its bounds in words; `group` names a class of configs."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        bounds = [re.sub(r"^must (not )?(be )?", r"\1", bound.text) for bound in hint.__metadata__]
        words = ", ".join((in_words(arguments[0], group, quote), *bounds))
        return words.replace("integer, an integer of", "integer of")
    if origin in (types.UnionType, typing.Union):
        return " or ".join(in_words(each, group, quote) for each in arguments)
    if origin is Literal:
        return ", ".join(f"{quote}{each}{quote}" for each in arguments)
    if origin is tuple:
        return f"list of {in_words(arguments[0], group, quote)}"
    if groups_in(hint) == [hint]:
        return group(hint)
    if len(arguments) == 2 and isinstance(origin, type) and issubclass(origin, Mapping):
        return f"values of {in_words(arguments[1], group, quote)} by name"
    return PLAIN.get(hint, f"{quote}{getattr(hint, '__name__', hint)}{quote}")


def value_in_words(value: Any, quote: str = "") -> str:
    """Return a field's value as a line of text; of a group its kind."""
    if is_group(value):
        return f"{quote}{kind_of(value)}{quote}" if has_kind(value) else "its defaults"
    named: dict[Any, str] = {None: "none", True: "true", False: "false", "": "empty", (): "empty"}
    if value is None or isinstance(value, bool | str | tuple):
        return named.get(value, f"{quote}{value}{quote}")
    return f"{quote}{value}{quote}"
