"""Results of commands, of whose fields the JSON and its reference are made; each prints its tables and a last line.

A field is a key of the JSON, or an object of the library whose attributes are keys, documented where its class is.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headjax.commands.options import FrozenDataclass
from headjax.core.serialize import parse_docstring
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.evaluation.task import Task

ABSENT: Any = type("Absent", (), {"__bool__": lambda self: False})()
"""A value that was not asked for; its key is absent."""


class Record(NamedTuple):
    """Facts about a field that holds an object of the library, see `record`."""

    name: str
    attributes: Mapping[str, str]
    suffix: str

    def keys(self, source: Any) -> dict[str, str]:
        """Return the attributes of an object, or of its class, by key."""
        attributes = self.attributes or dict(zip(source._fields, source._fields, strict=True))
        return {f"{key}{self.suffix}": attribute for key, attribute in attributes.items()}


def key(help: str = "", default: Any = dataclasses.MISSING) -> Any:
    """Declare a field that is a key of the JSON."""
    return dataclasses.field(default=default, metadata={"key": help})


def record(name: str, *attributes: str, suffix: str = "", default: Any = dataclasses.MISSING, **renamed: str) -> Any:
    """Declare a field that holds an object of a class, `module.Class`, whose attributes are keys of the JSON.

    Without names these are all fields of a named tuple; `key="attribute"` gives a key another name. The class is a
    name, so that a refused command does not import its module.
    """
    keys = {**dict(zip(attributes, attributes, strict=True)), **renamed}
    return dataclasses.field(default=default, metadata={"record": Record(name, keys, suffix)})


class CommandResult(FrozenDataclass):
    """Result of a command."""

    def to_json(self) -> dict[str, Any]:
        """Return the data that `--json` writes."""
        data: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if "key" in field.metadata:
                data[field.name] = value
            elif "record" in field.metadata and value is not None:
                keys = field.metadata["record"].keys(value)
                data |= {key: getattr(value, attribute) for key, attribute in keys.items()}
        return {key: plain(value) for key, value in data.items() if value is not ABSENT}

    def tables(self) -> Sequence[Table]:
        return ()

    def message(self) -> str:
        """Return the last line, such as where the output went."""
        return ""

    @property
    def exit_code(self) -> int:
        """Exit code of the command line; not 0 where the command did its work and the outcome is bad."""
        return 0


class ExamplesResult(CommandResult):
    """A result on the examples of a task."""

    selection: Mapping[str, Any] | None = key(default=None)
    evaluation: Mapping[str, Any] | None = key(default=None)
    about: Sequence[str] = ()


def keys_of(cls: type) -> dict[str, str]:
    """Return the keys of a result's JSON and what they mean, those of its records by the records' docstrings."""
    meanings: dict[str, str] = {}
    for field in dataclasses.fields(cls):
        if "key" in field.metadata:
            meanings[field.name] = field.metadata["key"]
        elif "record" in field.metadata:
            declared: Record = field.metadata["record"]
            module, _, name = declared.name.rpartition(".")
            of = getattr(importlib.import_module(module), name)
            known = {name: inspect.getdoc(each) for name, each in vars(of).items() if isinstance(each, property)}
            known |= parse_docstring(of.__doc__).meanings
            meanings |= {
                key: "" if declared.suffix else known.get(attribute) or ""
                for key, attribute in declared.keys(of).items()
            }
    return meanings


def plain(value: Any) -> Any:
    """Return a value as JSON data: named tuples and dataclasses by their fields, heads, layers and paths as text."""
    if hasattr(value, "parse") or isinstance(value, os.PathLike):
        return str(value)
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {
            "/".join(map(str, key)) if isinstance(key, tuple) and not hasattr(key, "parse") else str(key): plain(entry)
            for key, entry in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def summary(title: str, rows: Mapping[str, str]) -> Table:
    """Return a table of facts by name; those without a text are left out."""
    return Table((Column(title), Column("")), [row for row in rows.items() if row[1]])


def table_of(columns: Mapping[str, Column], rows: Sequence[Any], title: str = "", notes: Sequence[str] = ()) -> Table:
    """Return a table of values by name: attributes of the rows, or their entries; missing ones are a dash."""
    cells = [
        [row.get(name) if isinstance(row, Mapping) else getattr(row, name, None) for name in columns] for row in rows
    ]
    return Table(tuple(columns.values()), cells, title=title, notes=tuple(notes))


def printed_metrics(metrics: Mapping[str, float], task: Task) -> dict[str, float]:
    """Return the metrics that a table shows: perplexity per word only where the task's protocol counts words."""
    # In source code, and in languages without spaces, white space does not separate words.
    counts_words = "words" in task.data.info.get("protocol", {})
    return {name: value for name, value in metrics.items() if name != "word_perplexity" or counts_words}
