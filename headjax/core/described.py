"""Configs described by their code: each field's type in words, its default, and its meaning in the docstring."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from headjax.core.fields import Bound, options_of
from headjax.core.serialize import has_kind, is_group, kind_of, kinds_of

SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises")
"""Titles of the parts of a docstring that follow its text."""


class Docstring(NamedTuple):
    """A docstring in parts: the text before the sections, and of each section its entries by name.

    `Returns` and `Yields` have one entry without a name.
    """

    text: str
    sections: Mapping[str, Mapping[str, str]]


def parse_docstring(docstring: str | None) -> Docstring:
    """Return the parts of a docstring in Google's style."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    starts = [number for number, line in enumerate(lines) if line.removesuffix(":") in SECTIONS and line.endswith(":")]
    text = "\n".join(lines[: starts[0]] if starts else lines).strip()
    sections = {}
    for start, end in itertools.pairwise([*starts, len(lines)]):
        title = lines[start].removesuffix(":")
        body = inspect.cleandoc("\n" + "\n".join(lines[start + 1 : end]))
        sections[title] = {"": body} if title in ("Returns", "Yields") else dict(_entries(body))
    return Docstring(text, sections)


def _entries(body: str) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of a section; `first, second: text` are two entries."""
    for entry in re.split(r"\n(?=\S)", body):
        names, _, text = entry.partition(": ")
        for name in names.split(", "):
            yield name.strip("` "), inspect.cleandoc(text)


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
        sections = parse_docstring(each.__dict__.get("__doc__")).sections
        meanings |= sections.get("Attributes" if dataclasses.is_dataclass(cls) else "Args", {})
    given = {} if inspect.isabstract(cls) and not dataclasses.is_dataclass(cls) else options_of(cls)
    return [ConfigField(name, *option, meanings.get(name, "")) for name, option in given.items()]


def groups_in(hint: Any) -> list[type]:
    """Return the config classes that a declared type names."""
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or kinds_of(hint)):
        return [hint]
    return [found for part in typing.get_args(hint) for found in groups_in(part)]


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
