"""Results of commands: one frozen dataclass each, of which the JSON, the table for people and the reference are made.

A field is a key of the JSON. One with a label is a row of the table, one that is said stands in the last line.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from headjax.core import numbers
from headjax.report.tables import Column, Table

ABSENT: Any = type("Absent", (), {"__bool__": lambda self: False})()
"""A value that was not asked for; its key is absent."""


class Field(NamedTuple):
    """Facts about a field of a result, see `found`."""

    help: str
    label: str
    form: numbers.Format
    said: str


def found(
    help: str = "",
    label: str = "",
    form: numbers.Format = numbers.text,
    *,
    said: str = "",
    default: Any = dataclasses.MISSING,
) -> Any:
    """Declare a field of a result."""
    return dataclasses.field(default=default, metadata={"found": Field(help, label, form, said)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a command."""

    title: ClassVar[str] = ""

    def to_json(self) -> dict[str, Any]:
        """Return the data that `--json` writes."""
        return {name: plain(getattr(self, name)) for name in fields_of(type(self)) if getattr(self, name) is not ABSENT}

    def tables(self) -> Sequence[Table]:
        """Return the tables that are printed."""
        return [self.summary()]

    def summary(self, *more: tuple[str, str]) -> Table:
        """Return the labelled fields and more rows under the title, but for those without a value or text."""
        values = [(field, getattr(self, name)) for name, field in fields_of(type(self)).items() if field.label]
        rows = [(field.label, field.form(value)) for field, value in values if value not in (ABSENT, None)]
        rows = [row for row in (*rows, *more) if row[1]]
        return Table((Column(self.title), Column("")), rows)

    def message(self) -> str:
        """Return the last line, such as where the output went."""
        values = [(field, getattr(self, name)) for name, field in fields_of(type(self)).items() if field.said]
        return "; ".join(f"{field.said}: {field.form(value)}" for field, value in values if value)

    @property
    def exit_code(self) -> int:
        """Exit code of the command line; not 0 where the command did its work and the outcome is bad."""
        return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnExamples(Result):
    """A result on the examples of a task."""

    selection: Mapping[str, Any] | None = found(default=None)
    evaluation: Mapping[str, Any] | None = found(default=None)
    about: Sequence[str] = ()


def fields_of(cls: type) -> dict[str, Field]:
    """Return the declared fields of a result by name."""
    return {each.name: each.metadata["found"] for each in dataclasses.fields(cls) if "found" in each.metadata}


def plain(value: Any) -> Any:
    """Return a value as JSON data: named tuples and dataclasses by their fields, heads, layers and paths as text."""
    if hasattr(value, "parse") or isinstance(value, os.PathLike):
        return str(value)
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _key(key: Any) -> str:
    return "/".join(map(str, key)) if isinstance(key, tuple) and not hasattr(key, "parse") else str(key)


def table_of(columns: Mapping[str, Column], rows: Sequence[Any], title: str = "", notes: Sequence[str] = ()) -> Table:
    """Return a table of values by name: attributes of the rows, or their entries; missing ones are a dash."""
    cells = [
        [row.get(name) if isinstance(row, Mapping) else getattr(row, name, None) for name in columns] for row in rows
    ]
    return Table(tuple(columns.values()), cells, title=title, notes=tuple(notes))
