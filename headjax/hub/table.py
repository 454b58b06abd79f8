"""Tables between a Hugging Face `config.json` and our configs: one expression that is read and written.

A table has the shape of the config that it describes. `record(Learned, max_length=size("n_positions", 1024))` reads
`n_positions` into `Learned(max_length=...)`, and writes `max_length` back as `n_positions`. Values of a record that are
no entries are constants: the family has no field for them.

Writing does not check everything. An export reads its fields again and compares the result with the model's config
(`headjax.hub.layouts`), so that a field beyond the table is an error there.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from headjax.core.errors import ConfigError, HeadjaxError
from headjax.core.serialize import class_of, make
from headjax.hub.fields import ACTIVATION_NAMES, REQUIRED, Fields


class InexpressibleError(HeadjaxError):
    """A family's config or tensors cannot express a part of a model; the message names the part."""


class Entry(abc.ABC):
    """One value of our config, as fields of a `config.json` give it."""

    name: str | None = None
    """The field that an error about the value names, if there is one."""

    @abc.abstractmethod
    def read(self, fields: Fields) -> Any:
        """Return the value."""

    @abc.abstractmethod
    def write(self, value: Any, path: str) -> dict[str, Any]:
        """Return the fields that give this value."""

    def accepts(self, value: Any) -> bool:
        """Return whether this entry, of several that a choice has, is the one to write the value."""
        return True


@dataclasses.dataclass(frozen=True)
class Field(Entry):
    """A single field: `size`, `integer`, `number`, `flag` and `text` are those of one type."""

    name: str
    default: Any = REQUIRED
    reader: Callable[[Fields, str, Any], Any] = Fields.text
    writer: Callable[[Any], Any] = lambda value: value

    def read(self, fields: Fields) -> Any:
        default = self.default
        if default is not REQUIRED and not fields.has(self.name):
            default = default.read(fields) if isinstance(default, Entry) else default
            default = default(fields) if callable(default) else default
        return self.reader(fields, self.name, default)

    def write(self, value: Any, path: str) -> dict[str, Any]:
        return {self.name: self.writer(value)}


text = Field
size = functools.partial(Field, reader=Fields.size)
integer = functools.partial(Field, reader=Fields.integer)
number = functools.partial(Field, reader=Fields.number)
flag = functools.partial(Field, reader=Fields.flag)
activation = functools.partial(Field, reader=Fields.activation, writer=ACTIVATION_NAMES.__getitem__)
"""An activation function; its default is a Hugging Face name."""


@dataclasses.dataclass(frozen=True)
class Custom(Entry):
    """A value that takes more than one field or another form."""

    reader: Callable[[Fields], Any]
    writer: Callable[[Any], Mapping[str, Any]]
    name: str | None = None

    def read(self, fields: Fields) -> Any:
        return self.reader(fields)

    def write(self, value: Any, path: str) -> dict[str, Any]:
        return dict(self.writer(value))


def computed(reader: Callable[[Fields], Any], name: str | None = None) -> Custom:
    """Return the entry of a value that follows from fields that other entries write."""
    return Custom(reader, lambda value: {}, name)


def nullable(name: str, default: float | None, reader: Callable[[Fields, str, Any], Any]) -> Custom:
    """Return the entry of a field whose null means none; `default` counts where there is no field."""

    def read(fields: Fields) -> Any:
        return None if fields.data.get(name, default) is None else reader(fields, name, default or 0)

    return Custom(read, lambda value: {name: value}, name)


def share(whole: Field, count: Field) -> Custom:
    """Return the entry of a quotient of two fields: the size of heads that together are as wide as the model."""

    def read(fields: Fields) -> int:
        width, heads = whole.read(fields), count.read(fields)
        if width % heads:
            raise fields.error(count.name, f"{heads} heads do not divide a width of {width}")
        return width // heads

    return computed(read, count.name)


@dataclasses.dataclass(frozen=True)
class Fixed(Entry):
    """A value without a field."""

    value: Any

    def read(self, fields: Fields) -> Any:
        return self.value

    def write(self, value: Any, path: str) -> dict[str, Any]:
        return {}

    def accepts(self, value: Any) -> bool:
        return bool(value == self.value)


class Dropped(Fixed):
    """A value that stands for what the model has no place for, and that is never written back."""

    def accepts(self, value: Any) -> bool:
        return False


SHALLOW = 1000
"""Number of layers that are always accepted; of more, which take long to build, the files must hold a tensor each."""


@dataclasses.dataclass(frozen=True)
class Layers:
    """Values that differ by layer: `spread` splits the fields into those of each layer, `gather` merges them again."""

    count: Field
    parts: Mapping[str, Any]  # entries of a layer, by the name of our field
    spread: Callable[[Fields, int], Sequence[Mapping[str, Any]]] | None = None
    gather: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]] = lambda written: written[0]
    count_name: str = "num_layers"  # our field of the number

    def read(self, fields: Fields) -> dict[str, Any]:
        """Return the values of our fields."""
        count = self.count.read(fields)
        if fields.tensors and count > max(len(fields.tensors), SHALLOW):
            message = f"{count:,} layers, but the files hold {len(fields.tensors):,} tensors"
            raise fields.error(self.count.name, message)
        layers = (
            [fields]
            if self.spread is None
            else [fields.having(layer_fields) for layer_fields in self.spread(fields, count)]
        )
        values = {name: [part.read(layer) for layer in layers] for name, part in _entries(self.parts).items()}
        fields_by_layer = {name: tuple(each if self.spread else each * count) for name, each in values.items()}
        return {self.count_name: count} | fields_by_layer

    def write(self, config: Any) -> dict[str, Any]:
        """Return the fields that give these values."""
        count = getattr(config, self.count_name)
        written: list[dict[str, Any]] = [{} for _ in range(1 if self.spread is None else count)]
        for name, part in _entries(self.parts).items():
            for number, layer in enumerate(written):
                layer.update(part.write(getattr(config, name)[number], f"{name}[{number}]") | layer)
        return self.count.write(count, self.count_name) | dict(self.gather(written))


@dataclasses.dataclass(frozen=True)
class Record(Entry):
    """A dataclass or a `Kind`; see `record`."""

    kind: type
    parts: Mapping[str, Entry]
    layers: tuple[Layers, ...] = ()
    more: Callable[[Any], Mapping[str, Any]] = lambda value: {}

    def read(self, fields: Fields) -> Any:
        values = {name: part.read(fields) for name, part in self.parts.items()}
        for layers in self.layers:
            values |= layers.read(fields)
        try:
            return make(self.kind, values)
        except ConfigError as error:
            ours, _, message = str(error).partition(": ")
            name = self.parts[ours].name if ours in self.parts else None
            if name is not None:
                raise fields.error(name, message) from None
            raise ConfigError(f"{fields.file}: {error}") from None

    def write(self, value: Any, path: str) -> dict[str, Any]:
        if class_of(value) is not self.kind:
            raise InexpressibleError(
                f"{path} is {class_of(value).__name__}, config.json can express {self.kind.__name__} alone"
            )
        written = dict(self.more(value))
        for layers in self.layers:
            written = layers.write(value) | written
        for name, part in self.parts.items():
            inner = f"{path}.{name}" if path else name
            written = part.write(getattr(value, name), inner) | written
        return written

    def accepts(self, value: Any) -> bool:
        if class_of(value) is not self.kind:
            return False
        return all(part.accepts(getattr(value, name)) for name, part in self.parts.items())

    def having(self, **parts: Any) -> Record:
        return dataclasses.replace(self, parts=dict(self.parts) | _entries(parts))

    def writing(self, more: Callable[[Any], Mapping[str, Any]]) -> Record:
        """Return the record that also writes these fields."""
        return dataclasses.replace(self, more=more)


def _entries(parts: Mapping[str, Any]) -> dict[str, Entry]:
    return {name: part if isinstance(part, Entry) else Fixed(part) for name, part in parts.items()}


def record(kind: type, /, *layers: Layers, **parts: Any) -> Record:
    """Return the entry of a dataclass, or of a `Kind` of modules, its fields given by entries or constants.

    A value that the class refuses (`ConfigError("epsilon: must be ...")`) becomes an error of the field in the file.
    Where two parts write the same field, the first one's value is written.
    """
    return Record(kind, _entries(parts), layers)


@dataclasses.dataclass(frozen=True)
class Choice(Entry):
    """One of several values, distinguished by a field."""

    selector: Field
    options: Mapping[Hashable, Entry]

    def read(self, fields: Fields) -> Any:
        key = self.selector.read(fields)
        if key not in self.options:
            raise fields.unsupported(self.selector.name, key, self.options)
        return self.options[key].read(fields)

    def write(self, value: Any, path: str) -> dict[str, Any]:
        for key, option in self.options.items():
            if option.accepts(value):
                return self.selector.write(key, path) | option.write(value, path)
        known = ", ".join(map(repr, self.options))
        raise InexpressibleError(f"{path} is {value!r}, {self.selector.name} can express {known}")

    def accepts(self, value: Any) -> bool:
        return any(option.accepts(value) for option in self.options.values())


@dataclasses.dataclass(frozen=True)
class Optional(Entry):
    """A value or None."""

    entry: Entry
    when: Entry | Callable[[Fields], bool]

    def read(self, fields: Fields) -> Any:
        present = self.when.read(fields) if isinstance(self.when, Entry) else self.when(fields)
        return self.entry.read(fields) if present else None

    def write(self, value: Any, path: str) -> dict[str, Any]:
        written = self.when.write(value is not None, path) if isinstance(self.when, Entry) else {}
        return written if value is None else written | self.entry.write(value, path)

    def accepts(self, value: Any) -> bool:
        return value is None or self.entry.accepts(value)


@dataclasses.dataclass(frozen=True)
class TrainingOnly(Entry):
    """A value that matters in training alone: one that the entry cannot write is not written."""

    entry: Entry

    def read(self, fields: Fields) -> Any:
        return self.entry.read(fields)

    def write(self, value: Any, path: str) -> dict[str, Any]:
        return self.entry.write(value, path) if self.entry.accepts(value) else {}


def has_tensor(part: str) -> Callable[[Fields], bool]:
    """Return the condition that the name of some tensor has this part."""
    return lambda fields: any(part in name for name in fields.tensors)
