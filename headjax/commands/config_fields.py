"""Every field of a run's config, as `headjax train --help-config` lists them."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin

from headjax.commands.outputs import CommandResult, key
from headjax.core.serialize import (
    MISSING,
    ConfigField,
    class_of_kind,
    config_fields,
    groups_in,
    in_words,
    kinds_of,
    parse_docstring,
    to_data,
    value_in_words,
)
from headjax.report.tables import Table

WIDTH = 100
"""Columns of the list."""


class Row(NamedTuple):
    """A field of a run's config; default and value are JSON data."""

    path: str
    of: tuple[str, ...]  # kinds of its group that have it; empty for all
    type: str
    choices: tuple[Any, ...] | None
    required: bool
    default: Any
    meaning: str
    same_as: str | None = None  # path of a group with the same fields, which are listed there

    def lines(self) -> Iterator[str]:
        """Yield the field as lines of text: path, type and default; meaning; kinds."""
        of = f" ({', '.join(self.of)})" if self.of else ""
        default = "required" if self.required else f"default {_shown(self.default)}"
        same = f"; fields as of {self.same_as}" if self.same_as else ""
        yield from _wrapped(f"{self.path}{of}: {self.type}; {default}{same}", "", "        ")
        yield from _wrapped(self.meaning, "    ", "    ")
        for name in (self.choices or ()) if self.type == "group" and not self.same_as else ():
            text = parse_docstring(class_of_kind(name).__doc__).text.partition("\n\n")[0]
            yield from _wrapped(f"{name}: {text}", "      ", "        ")


def _wrapped(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)


def _shown(data: Any) -> str:
    """Return JSON data in a line: of a group its kind, of many items how many."""
    if isinstance(data, dict):
        return str(data.get("kind", "that of its fields"))
    if isinstance(data, list) and any(isinstance(item, dict) for item in data):
        return f"{len(data)} items"
    return value_in_words(tuple(data) if isinstance(data, list) else data)


def rows_of(cls: type, path: str = "config", listed: dict[type, str] | None = None) -> list[Row]:
    """Return the fields of a group, of every kind, and of the groups among them, each listed once."""
    listed = {} if listed is None else listed
    classes = [class_of_kind(name) for name in kinds_of(cls)] or [cls]
    merged: dict[str, tuple[ConfigField, list[str]]] = {}
    for each in classes:
        for field in config_fields(each):
            key = repr((field.name, field.hint, field.default, field.meaning))
            merged.setdefault(key, (field, []))[1].append(getattr(each, "_kind", ""))
    rows, groups = [], []
    for field, kinds in merged.values():
        where, group = f"{path}.{field.name}", next(iter(groups_in(field.hint)), None)
        same = where if group is None else listed.setdefault(group, where)
        row = Row(
            where,
            () if len(kinds) == len(classes) else tuple(kinds),
            in_words(field.hint, lambda _: "group").removesuffix(" or none"),
            _choices(field.hint) if group is None else tuple(kinds_of(group)) or None,
            field.default is MISSING,
            None if field.default is MISSING else to_data(field.default),
            " ".join(field.meaning.split()),
            same if same != where else None,
        )
        rows.append(row)
        if group is not None and same == where:
            groups.append((group, f"{where}[]" if get_origin(field.hint) is tuple else where))
    return rows + [row for below in dict.fromkeys(groups) for row in rows_of(*below, listed)]


def _choices(hint: Any) -> tuple[Any, ...] | None:
    """Return the values that a declared type lists."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return next(filter(None, map(_choices, get_args(hint))), None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigFields(CommandResult):
    """The fields of a run's config."""

    fields: Sequence[Row] = key("`path`, `type`, `choices`, `default`, `meaning`, ... with `--help-config`")

    def tables(self) -> Sequence[Table]:
        return []

    def message(self) -> str:
        return "\n".join(line for row in self.fields for line in row.lines())
