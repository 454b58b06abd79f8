"""`headjax train`."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args, get_origin

from headjax.commands.options import ConfigOptions, option
from headjax.commands.outputs import CommandResult, key, record, summary
from headjax.core import numbers, serialize
from headjax.core.errors import DIVERGED, INTERRUPTED
from headjax.core.fields import Positive
from headjax.core.progress import Progress
from headjax.report.tables import Table

if TYPE_CHECKING:
    from headjax.training.loop import TrainResult

MAX_TIME = "time limit, after which a checkpoint ends the run; the same command continues it"
"""Help of `--max-time` where it ends a run."""

WIDTH = 100
"""Columns of the list of fields."""


def _steps_to_trace(text: str) -> range:
    """Read a range such as `10:15`, of which both ends belong to it."""
    found = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"expected FIRST:LAST such as 10:15, got {text!r}")
    return range(int(found[1]), int(found[2]) + 1)


class Options(ConfigOptions):
    workdir: str = option(help="folder of checkpoints, metrics and the model", metavar="D", writes="folder")
    max_time: Positive | None = option(None, MAX_TIME, "MINUTES")
    distributed: str | None = option(None, "one of several processes: auto (Cloud TPU, GKE), or HOST:PORT,N,I", "WHO")
    help_config: bool = option(False, "list every field of a config", alone=True)
    profile_steps: range = option(
        range(0), "write a trace of these steps, for xprof", "FIRST:LAST", read=_steps_to_trace, shown="none"
    )


class Run(CommandResult):
    """A training run."""

    title: ClassVar[str] = "Training"
    result: TrainResult = record(
        "headjax.training.loop.TrainResult", "steps", "finished", "metrics", "kept_step", "tokens_per_second"
    )
    diverged: bool = key()
    parameters: int = key()
    classes: Sequence[str] = key("class names of a classifier")
    model: str | None = key("its folder; null where the run has not finished")
    wanted: int

    def facts(self) -> dict[str, str]:
        return {"parameters": numbers.count(self.parameters), "classes": ", ".join(self.classes[:8])}

    def tables(self) -> Sequence[Table]:
        result, rows = self.result, self.facts()
        rows["steps"] = f"{result.steps:,} of {self.wanted:,}"
        rows |= {name: numbers.significant(value) for name, value in result.metrics.items()}
        rows["tokens per second"] = numbers.count(result.tokens_per_second)
        if result.kept_step != result.steps:
            rows["weights kept"] = f"after step {result.kept_step:,}"
        return [dataclasses.replace(summary(self.title, rows), notes=result.notes)]

    def message(self) -> str:
        if self.diverged:
            return f"diverged: {self.result.diverged}"
        if not self.result.finished:
            return f"interrupted after step {self.result.steps}; the same command continues from there"
        return f"model: {self.model}"

    @property
    def exit_code(self) -> int:
        return DIVERGED if self.diverged else 0 if self.result.finished else INTERRUPTED


def run_fields(result: TrainResult, model: object, classes: Sequence[str], wanted: int) -> dict[str, Any]:
    """Return the fields of `Run` about the result of a run whose model lies in a folder."""
    return {
        "result": result,
        "diverged": result.diverged is not None,
        "parameters": result.model.num_parameters,
        "classes": list(classes),
        "model": None if result.path is None else str(model),
        "wanted": wanted,
    }


def run(options: Options, progress: Progress) -> Run | ConfigFields:
    """Trains, evaluates, checkpoints and resumes by itself."""
    from headjax.training.config import TrainConfig, train_config

    if options.help_config:
        return ConfigFields(fields=rows_of(TrainConfig))
    if options.distributed is not None:
        from headjax.mesh.distributed import initialize

        initialize(options.distributed)

    from headjax.models.tasks.classification import class_names
    from headjax.training.config_file import load_config
    from headjax.training.loop import train

    config = train_config(load_config(options.config, options.overrides))
    seconds = None if options.max_time is None else 60.0 * options.max_time
    result = train(config, options.workdir, progress=progress, profiled=options.profile_steps, max_seconds=seconds)
    return Run(**run_fields(result, result.path, class_names(result.model.config), config.steps))


# The fields of a run's config, as `--help-config` lists them.


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
        data = self.default
        if isinstance(data, dict):  # a group
            default = str(data.get("kind", "that of its fields"))
        elif isinstance(data, list) and any(isinstance(item, dict) for item in data):
            default = f"{len(data)} items"
        else:
            default = serialize.value_in_words(tuple(data) if isinstance(data, list) else data)
        default = "required" if self.required else f"default {default}"
        same = f"; fields as of {self.same_as}" if self.same_as else ""
        texts = [(f"{self.path}{of}: {self.type}; {default}{same}", "", "        "), (self.meaning, "    ", "    ")]
        for name in (self.choices or ()) if self.type == "group" and not self.same_as else ():
            text = serialize.parse_docstring(serialize.class_of_kind(name).__doc__).text.partition("\n\n")[0]
            texts.append((f"{name}: {text}", "      ", "        "))
        for text, first, others in texts:
            wrapping: Any = {"initial_indent": first, "subsequent_indent": others, "break_on_hyphens": False}
            yield from textwrap.wrap(text, WIDTH, **wrapping)


def rows_of(cls: type, path: str = "config", listed: dict[type, str] | None = None) -> list[Row]:
    """Return the fields of a group, of every kind, and of the groups among them, each listed once."""
    listed = {} if listed is None else listed
    classes = [serialize.class_of_kind(name) for name in serialize.kinds_of(cls)] or [cls]
    merged: dict[str, tuple[serialize.ConfigField, list[str]]] = {}
    for each in classes:
        for field in serialize.config_fields(each):
            key = repr((field.name, field.hint, field.default, field.meaning))
            merged.setdefault(key, (field, []))[1].append(getattr(each, "_kind", ""))
    rows, groups = [], []
    for field, kinds in merged.values():
        where, group = f"{path}.{field.name}", next(iter(serialize.groups_in(field.hint)), None)
        same = where if group is None else listed.setdefault(group, where)
        row = Row(
            where,
            () if len(kinds) == len(classes) else tuple(kinds),
            serialize.in_words(field.hint, lambda _: "group").removesuffix(" or none"),
            _choices(field.hint) if group is None else tuple(serialize.kinds_of(group)) or None,
            field.default is serialize.MISSING,
            None if field.default is serialize.MISSING else serialize.to_data(field.default),
            " ".join(field.meaning.split()),
            same if same != where else None,
        )
        rows.append(row)
        if group is not None and same == where:
            groups.append((group, f"{where}[]" if get_origin(field.hint) is tuple else where))
    return rows + [row for below in dict.fromkeys(groups) for row in rows_of(*below, listed)]


def _choices(hint: Any) -> tuple[Any, ...] | None:
    if get_origin(hint) is Literal:
        return get_args(hint)
    return next(filter(None, map(_choices, get_args(hint))), None)


class ConfigFields(CommandResult):
    """The fields of a run's config."""

    fields: Sequence[Row] = key("`path`, `type`, `choices`, `default`, `meaning`, ... with `--help-config`")

    def message(self) -> str:
        return "\n".join(line for row in self.fields for line in row.lines())
