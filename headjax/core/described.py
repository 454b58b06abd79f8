"""Configs described by their code: each field's type in words, its default, and its meaning in the docstring."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from headjax.core.fields import Bound, options_of
from headjax.core.serialize import has_kind, is_group, kind_of, kinds_of

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
        bounds = [
            re.sub(r"^must (not )?(be )?", r"\1", each.text) for each in hint.__metadata__ if isinstance(each, Bound)
        ]
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
