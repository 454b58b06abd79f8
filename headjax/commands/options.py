"""Options of commands: one frozen dataclass each, of whose fields, their types and bounds argparse is made.

What an option reads and writes is declared with it; `headjax.commands.inputs` looks at both before any work is done.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import re
import types
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from headjax.core.errors import ColumnsError, HeadjaxError
from headjax.core.fields import Count, Positive, Size, check_value

if typing.TYPE_CHECKING:
    from headjax.core.progress import Progress
    from headjax.models.model import Model

Read = Literal["", "model", "task", "config", "file", "path"]
"""Input that an option names: a model directory, a task by name or path, a config, a file; a path is looked at late."""

Written = Literal["", "new", "folder", "file"]
"""Output under the path of an option: a new folder, a folder that is continued, or a file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Declared:
    """How a field is typed; see `option` and `argument`."""

    help: str = ""
    metavar: str = "N"
    positional: bool = False
    read: Callable[[str], Any] | None = None
    shown: str = ""
    words: Literal["one", "many", "repeated"] = "one"
    name: str = ""
    reads: Read = ""
    writes: Written = ""
    alone: bool = False


def option(default: Any = dataclasses.MISSING, help: str = "", metavar: str = "N", **more: Any) -> Any:
    """Declare a field as the option of its name: `batch_size` is `--batch-size`."""
    return dataclasses.field(default=default, metadata={"option": Declared(help=help, metavar=metavar, **more)})


def argument(metavar: str, help: str, default: Any = dataclasses.MISSING, **more: Any) -> Any:
    """Declare a field as a word without a name, in the order of the fields; see `option`."""
    return option(default, help, metavar, positional=True, **more)


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
class FrozenDataclass:
    """A class whose subclasses are frozen dataclasses, their fields given by name."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)


class CommandOptions(FrozenDataclass):
    """Options of every command; a class with a `title` has its own under that heading in the help."""

    title: ClassVar[str] = "options of every command"
    json: str | None = option(None, "write the result as JSON; - is stdout", "PATH", writes="file")
    overwrite: bool = option(False, "replace a folder or a file that exists")
    modules: tuple[str, ...] = option(
        (), "import your own formulations before: a module, or a Python file; can be repeated", "MODULE",
        words="repeated", name="--import",
    )  # fmt: skip


OptionsT = TypeVar("OptionsT", bound=CommandOptions)


def parse_options(cls: type[OptionsT], words: Sequence[str], parser: argparse.ArgumentParser, **given: Any) -> OptionsT:
    """Return a command's options as typed."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = [field for field in dataclasses.fields(cls) if "option" in field.metadata]
    alone = any(declared(field).alone and name_of(field) in words for field in fields)  # then it needs no others
    titles = dict.fromkeys(filter(None, (getattr(owner, "title", "") for owner in cls.__mro__)))
    groups: dict[str, Any] = {"": parser, **{title: parser.add_argument_group(title) for title in titles}}
    for field in fields:
        owner = next(each for each in cls.__mro__ if field.name in vars(each).get("__annotations__", {}))
        group = parser if declared(field).positional else groups[owner.__dict__.get("title", "")]
        _add(group, field, hints[field.name], required=field.default is dataclasses.MISSING and not alone)
    # Words without names may stand anywhere between the options, also those that can be left out.
    try:
        typed = vars(parser.parse_intermixed_args(list(words)))
        names = [name_of(field) for field in fields if field.default is dataclasses.MISSING and field.name not in typed]
        if names and not alone:
            parser.error(f"the following arguments are required: {', '.join(names)}")
    except HeadjaxError as error:
        raise HeadjaxError(f"{error}{_meant(fields, words)}") from None
    values: dict[str, Any] = {field.name: "" for field in fields if field.default is dataclasses.MISSING}
    for field in fields:
        if field.name in typed:
            values[field.name] = _read(field, hints[field.name], typed[field.name])
    return cls(**values, **given)


def _meant(fields: Sequence[dataclasses.Field[Any]], words: Sequence[str]) -> str:
    """Return the option that a stray word seems to mean: `remove=40%` without dashes, or a file of data without one."""
    named = {name_of(field).removeprefix("--"): field for field in fields if not declared(field).positional}
    of_data = [name for name, field in named.items() if declared(field).reads == "task" and f"--{name}" not in words]
    for before, word in zip(("", *words), words, strict=False):
        name, mark, value = re.fullmatch(r"([^=:]*)([=:]?)(.*)", word, re.DOTALL).groups()  # type: ignore[union-attr]
        name = name.removeprefix("-").replace("_", "-")
        if mark and not word.startswith("--") and name in named:
            return f"; options begin with dashes: --{name} {value}".rstrip()
        of_option = before.startswith("--") and "=" not in before
        if of_data and not of_option and not word.startswith("-") and (os.path.isfile(word) or "://" in word):
            return f"; data is named by an option: --{of_data[0]} {word}"
    return ""


def respell(error: HeadjaxError, options: CommandOptions) -> None:
    """Name the option in an error about an argument of the library that came from it: `length` is `--length`."""
    if isinstance(error, ColumnsError):
        said = f"say --columns {error.names}" if hasattr(options, "columns") else "set config.data.columns"
        known = hasattr(options, "columns") or hasattr(options, "overrides")
        error.args = (str(error).replace(error.remedy, f", or {said}" if known else ""),)
    name, colon, rest = str(error).partition(": ")
    of_option = {field.name: name_of(field) for field in dataclasses.fields(options) if "option" in field.metadata}
    if colon and of_option.get(name, "").startswith("--"):
        error.args = (f"{of_option[name]}: {rest}", *error.args[1:])


def declared(field: dataclasses.Field[Any]) -> Declared:
    """Return how a field was declared; one that is no option has no name and no paths."""
    return field.metadata.get("option", Declared())


def name_of(field: dataclasses.Field[Any]) -> str:
    """Return the name of a field as the help lists it."""
    own = declared(field)
    return own.metavar if own.positional else own.name or f"--{field.name.replace('_', '-')}"


def _add(parser: argparse._ActionsContainer, field: dataclasses.Field[Any], hint: Any, required: bool) -> None:
    """Add a field to a parser; argparse never sees a default."""
    own, name, default = declared(field), name_of(field), field.default
    unset = default is dataclasses.MISSING or default is None or default is False or default in ("", ())
    shown = own.shown or (",".join(map(str, default)) if isinstance(default, tuple) else "" if unset else str(default))
    text = own.help + (f" (default {shown})" if shown else "")
    common: dict[str, Any] = {"default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
    if hint is bool:
        parser.add_argument(name, dest=field.name, action="store_true", **common)
        return
    choices = typing.get_args(_plain(hint)) if typing.get_origin(_plain(hint)) is Literal else ()
    common |= {"metavar": f"{{{','.join(choices)}}}" if choices else own.metavar}
    if own.words == "many":
        common["nargs"] = "+"
    elif own.words == "repeated":
        common["action"] = "append"
    elif own.positional and not required:
        common["nargs"] = "?"
    if own.positional:
        parser.add_argument(field.name, **common)
    else:
        parser.add_argument(name, dest=field.name, required=required, **common)


def _read(field: dataclasses.Field[Any], hint: Any, typed: Any) -> Any:
    """Return the typed value, checked against the field's type and bounds."""
    own, name = declared(field), name_of(field)
    if hint is bool:
        return typed
    read = own.read or _reader(hint if own.words == "one" else typing.get_args(_plain(hint))[0])
    try:
        value = read(typed) if own.words == "one" else tuple(map(read, typed))
    except ValueError as error:
        raise HeadjaxError(f"{name}: {error}") from None
    check_value(hint, name, value)
    return value


def _plain(hint: Any) -> Any:
    """Return a type without its bounds and without None."""
    if typing.get_origin(hint) is Annotated:
        return _plain(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return _plain(next(each for each in typing.get_args(hint) if each is not type(None)))
    return hint


def _reader(hint: Any) -> Callable[[str], Any]:
    """Return the function from text to a value of a type."""
    plain = _plain(hint)
    if typing.get_origin(plain) is tuple:
        item = _reader(typing.get_args(plain)[0])
        return lambda text: tuple(map(item, text.split(",")))
    return functools.partial(_number, plain) if plain in (int, float) else _text


def _text(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"not UTF-8: {text[:60]!r}") from None
    return text


def _number(kind: type, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"expected a {'whole ' if kind is int else ''}number, got {text!r}") from None


# Options that several commands have.

CALIBRATE, FEWEST = 512, 32
"""Greatest and least default number of examples that choose."""

SECONDS = 240.0
"""Time that the passes over the examples that choose may take by default."""

DirectoryKind = Literal["huggingface", "headjax"]

Quantized = Literal["int8", "int8:avx2", "int8:arm64"]
"""Kinds of integers, see `headjax.hub.onnx.QUANTIZED`."""

# Help of MODEL, --to, --task and --quantize.
MODEL = "model directory, headjax's or of Hugging Face"
DIRECTORY = "kind of directory that OUT is (default: MODEL's)"
TASK = "task name (python, sst2, ...) or a file"
QUANTIZE = "also write an onnx graph in int8 (AVX-512 with VNNI), int8:avx2 or int8:arm64"

LENGTHS = (16, 32, 64, 128, 256)
"""Lengths to which texts are padded, so that short ones cost less; each takes a program."""


class ConfigOptions(CommandOptions):
    """Options of commands that read a config file; the command line collects the overrides."""

    config: str = option(
        help="config file, with its arguments; --config.FIELD=VALUE sets a field of it",
        metavar="FILE[:ARGS]",
        reads="config",
    )
    overrides: tuple[str, ...] = ()


class BatchOptions(CommandOptions):
    """Options of commands that compute in batches."""

    title: ClassVar[str] = "examples"
    batch_size: Size = option(16, "examples (texts, prompts) per batch")


class ReadingOptions(BatchOptions):
    """Options of commands that read the examples of a task."""

    title: ClassVar[str] = "examples"
    task: str = option(help=TASK, metavar="TASK", reads="task")
    limit: Count = option(0, "use the first N examples; 0 is all")
    length: Size | None = option(
        None, "cut texts, or both sentences of a similarity, to N tokens (default: all positions, up to 512; squad 384)"
    )
    columns: tuple[str, ...] = option(
        (), "columns of a table with labels: TEXT,LABEL or TEXT,SECOND,LABEL (default: by name)", "NAMES"
    )


def by_field(columns: Sequence[str]) -> dict[str, str]:
    """Return the columns that `--columns` names by field."""
    if not columns:
        return {}
    if len(columns) not in (2, 3):
        raise HeadjaxError("--columns: expected TEXT,LABEL or TEXT,SECOND,LABEL")
    text, *second, label = columns
    return {"text": text, **({"second": second[0]} if second else {}), "label": label}


class TaskOptions(ReadingOptions):
    """Options of commands that evaluate a model on a task."""

    title: ClassVar[str] = "examples"
    split: ClassVar[str] = "validation"
    """Split that is evaluated on, see `load_task`."""

    model: str = argument("MODEL", MODEL, reads="model")

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths to which texts are padded, besides that of the longest; short ones come first."""
        return LENGTHS

    @property
    def reading(self) -> dict[str, Any]:
        """Arguments of `Task.batches` for the examples of the evaluation."""
        return {"limit": self.limit, "batch_size": self.batch_size, "buckets": self.lengths}

    def loaded(self) -> Model:
        from headjax.hub.either import read_model

        return read_model(self.model)


class ExamplesOptions(TaskOptions):
    """Options of commands that choose on some examples of a task and measure on others (`evaluation.specs`)."""

    title: ClassVar[str] = "examples"
    calibration: tuple[str, ...] = option(
        (),
        "examples that choose: another file or task, or validation; a model that embeds sentences takes plain text, "
        "too; can be repeated, each file has an equal share; metrics are then taken on all of --task (default: the "
        "task's own training examples; a task with one split is divided in halves)",
        "FILE", words="repeated", reads="task",
    )  # fmt: skip
    calibrate: Count | None = option(
        None,
        f"number of examples that choose; 0 is all (default: --limit, or {CALIBRATE}, fewer where they would take more "
        f"than {SECONDS / 60:.0f} minutes here)",
    )


class WritingOptions(CommandOptions):
    """Options of commands that write a model made of another one."""

    model: str
    out: str
    format: DirectoryKind | None = option(None, DIRECTORY, name="--to")
    quantize: str | None = None

    @property
    def reading(self) -> dict[str, Any]:
        """Arguments of `Task.batches` for the examples to evaluate on."""
        return {"buckets": LENGTHS}

    def write(self, model: Model, progress: Progress) -> str:
        """Write the model to OUT; return what is to be said about it."""
        from headjax.hub.either import write_model

        return write_model(model, self.out, self.kind(), quantize=self.quantize, progress=progress)

    def kind(self) -> DirectoryKind:
        from headjax.hub.either import kind_of_directory

        return self.format or kind_of_directory(self.model)


class TimedOptions(TaskOptions):
    """Options of commands whose result is one on fewer examples where time runs out."""

    title: ClassVar[str] = "examples"
    max_time: Positive | None = option(
        None, "time limit, after which no further batch is read; the result gives its number of examples", "MINUTES"
    )

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths to which texts are padded; where time may run out, the longest alone keeps their order."""
        return () if self.max_time is not None else super().lengths


class ChangingOptions(ExamplesOptions, WritingOptions):
    """Options of commands that change a model by some examples of a task, and may write graphs of it."""

    quantize: Quantized | None = option(None, QUANTIZE, "KIND")
    max_time: Positive | None = option(None, "refuse work that takes longer, by a timed pass", "MINUTES")
