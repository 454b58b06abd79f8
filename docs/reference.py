"""Reference pages, generated from the code: public names, config fields, commands and tasks.

The Sphinx build runs `write_pages`; nothing that it writes is committed. The pages follow the package by themselves: a
new command, a new `@kind` or a new task appears with the next build.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import headjax
from headjax.cli import COMMANDS, main
from headjax.commands.models import ChangedResult
from headjax.commands.outputs import ExamplesResult, keys_of
from headjax.commands.train import Run
from headjax.core.fields import Checked
from headjax.core.serialize import (
    MISSING,
    class_of_kind,
    config_fields,
    groups_in,
    in_words,
    kinds_of,
    parse_docstring,
    value_in_words,
)
from headjax.data.forms.questions import QuestionForm, QuestionWindows
from headjax.data.registry import TASKS
from headjax.data.spec import TaskSpec
from headjax.evaluation.task import MEASURES
from headjax.training.config import TrainConfig

# Text.


def escape(text: str) -> str:
    """Return text as Markdown in which a `<` outside of code begins no tag."""
    return re.sub(r"(`[^`]*`)|<", lambda found: found[1] or "&lt;", text)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


# Public names.


def names_page() -> str:
    """Return the page of every public name of `headjax`, which autodoc fills in from the docstrings."""
    names = sorted((name for name in headjax.__all__ if not name.startswith("_")), key=str.casefold)
    parts = [
        "# Every public name",
        "`import headjax` gives these names; [Python](../api.md) lists them by subject. Arrays have their shapes in "
        "brackets, `[batch, query, heads, head_dim]`.",
    ]
    for name in names:
        parts.append(f"(name-{name.lower()})=\n## `headjax.{name}`\n\n```{{eval-rst}}\n{_directive(name)}\n```")
    return "\n\n".join(parts) + "\n"


def _directive(name: str) -> str:
    """Return the directive of autodoc for a public name; a type's other name has its text in its own module."""
    found, path = getattr(headjax, name), f"headjax.{name}"
    if inspect.ismodule(found):
        described = ", ".join(each for each in getattr(found, "__all__", ()) if each in headjax._LAZY)
        return f".. automodule:: {found.__name__}\n   :members:\n   :exclude-members: {described}"
    if inspect.isclass(found) and typing.get_origin(found) is None:
        return f".. autoclass:: {path}\n   :members:\n   :special-members: __call__"
    if inspect.isfunction(found):
        return f".. autofunction:: {path}"
    return f".. autodata:: {headjax._LAZY[name]}.{name}"


# Config fields.


def load_kinds() -> None:
    """Import every module of headjax that registers a config under a name."""
    root = Path(headjax.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if re.search(r"^@kind\(", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            importlib.import_module(".".join(("headjax", *path.relative_to(root).with_suffix("").parts)))


def config_classes() -> dict[type, list[type]]:
    """Return the groups of config fields: for each base, the classes that a field of its type can hold.

    The first is the training run; the others follow in the order in which its fields name them, and then those that
    only other commands read.
    """
    load_kinds()
    found: dict[type, list[type]] = {}
    queue: list[type] = [TrainConfig]
    rest = [cls for cls in map(class_of_kind, kinds_of(object)) if issubclass(cls, Checked)]
    while queue or rest:
        base = base_of(queue.pop(0) if queue else rest.pop(0))
        if base in found:
            continue
        found[base] = [class_of_kind(name) for name in kinds_of(base)] or [base]
        for each in found[base]:
            queue += [part for field in config_fields(each) for part in groups_in(field.hint)]
    return found


def base_of(cls: type) -> type:
    """Return the class that a config's fields name: the last one above it of which there are kinds, or itself."""
    bases = [each for each in cls.__mro__ if issubclass(each, Checked) and each is not Checked]
    return ([cls] + [each for each in bases if kinds_of(each)])[-1]


def config_page() -> str:
    """Return the page of every config field, by group and kind."""
    parts = [
        "# Every config field",
        "A config file returns a `ConfigDict` with the fields of a [training run](#group-trainconfig); "
        "`--config.FIELD=VALUE` sets one of them, as in `--config.optimizer.weight_decay=0.1`. Where a group has "
        'several kinds, `kind` names one: `config.optimizer = {"kind": "adamw", ...}`. `config.json` of a model '
        "directory has the same form. A field that does not exist, or a value out of bounds, is an error that names "
        "the field.",
    ]
    for base, classes in config_classes().items():
        label = f"(group-{base.__name__.lower()})="
        if classes == [base]:
            own = f"(kind-{_kind(base)})=\n" if hasattr(base, "_kind") else ""
            parts += [f"{own}{label}\n## {base.__name__}", *_config(base)]
            continue
        parts += [f"{label}\n## {base.__name__}", escape(parse_docstring(base.__doc__).text)]
        parts.append("Kinds: " + ", ".join(f"[`{_kind(cls)}`](#kind-{_kind(cls)})" for cls in classes) + ".")
        for cls in classes:
            parts += [f"(kind-{_kind(cls)})=\n### `{_kind(cls)}`", *_config(cls)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _kind(cls: type) -> str:
    return str(cls._kind)  # type: ignore[attr-defined]


def _config(cls: Any) -> list[str]:
    """Return the text and the table of a config class: names, types and bounds in words, defaults as in JSON."""

    def link(group: type) -> str:
        return f"[{base_of(group).__name__}](#group-{base_of(group).__name__.lower()})"

    rows = [
        (
            f"`{name}`",
            in_words(hint, link, "`"),
            "required" if default is MISSING else value_in_words(default, "`"),
            escape(meaning),
        )
        for name, hint, default, meaning in config_fields(cls)
    ]
    fields = table(("field", "type", "default", "meaning"), rows) if rows else "No fields."
    return [escape(parse_docstring(cls.__doc__).text), fields]


# Commands and tasks.


def commands_page() -> str:
    """Return the page of every command: its help and the text of its function."""
    parts = [
        "# Every command",
        "[The command line](../command_line.md) has exit codes and rules that all commands share, [JSON](json.md) "
        "the keys of their results.",
    ]
    for name in COMMANDS:
        doc = parse_docstring(importlib.import_module(f"headjax.commands.{name}").run.__doc__)
        parts += [f"(command-{name})=\n## headjax {name}", escape(doc.text), f"```text\n{_help(name)}\n```"]
    return "\n\n".join(parts) + "\n"


def _help(command: str) -> str:
    """Return what `headjax COMMAND --help` prints."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        main([command, "--help"])
    return shown.getvalue().strip()


def tasks_page() -> str:
    """Return the page of every task that has a name."""
    rows = [
        (name, escape(_needs(spec)), escape(", ".join(spec.form.wanted)), ", ".join(_metrics(spec)), _recipes(spec))
        for name, spec in sorted(TASKS.items())
    ]
    notes = (
        "[Tasks, classes and examples](../tasks.md) explains how files become tasks and labels classes.",
        "NAME:FOLDER says where a task's files are; without it they are looked for under the folder HEADJAX_DATA.",
    )
    header = ("Task", "Files", "Fields", "Metrics", "Training in papers")
    return "\n\n".join(("# Every task", *notes, table(header, rows))) + "\n"


def _metrics(spec: TaskSpec) -> tuple[str, ...]:
    """Return the names of a task's metrics, the headline first; its measure has two classes and no examples."""
    form: Any = spec.form
    if spec.learns_classes:
        form = dataclasses.replace(form, classes=("O", "B-X"))
    nothing = QuestionWindows((), np.zeros(0, np.int64), 1, lambda record, length: {}, all_records=())
    measured = form.measured(spec.metrics, {}, nothing if isinstance(form, QuestionForm) else ())
    if measured is None:
        return ()
    measure = MEASURES[measured.measure](**measured.arguments)
    return tuple(getattr(measure, "chosen", ())) or tuple(filter(None, (measure.primary_metric,)))


def _recipes(spec: TaskSpec) -> str:
    """Return the papers' settings of training."""
    found = []
    for one in spec.recipes:
        rates = " or ".join(f"{rate:g}" for rate in one.learning_rates)
        long = [f"{one.epochs} epochs" * bool(one.epochs), f"{one.steps:,} steps" * bool(one.steps)]
        sizes = [f"batches of {one.batch_size}", f"at {rates}", f"{one.length} tokens" * bool(one.length), *long]
        found.append(f"{one.paper}: {', '.join(filter(None, sizes))}")
    return "; ".join(found)


def _needs(spec: TaskSpec) -> str:
    """Return the files that a task is read from."""
    found = [spec.files] if spec.files else []
    if spec.layouts:
        layouts = (" and ".join(filter(None, layout[:2])) for layout in spec.layouts)
        found = [f"{spec.folders[0]}: {' or '.join(layouts)}"]
    for source in spec.sources:
        found.append(f"TFDS {source.name} ({source.splits.get('train', '-')} / {source.splits['validation']})")
    return "; ".join(found) or "a table of its columns"


SHARED: Mapping[type, str] = {ExamplesResult: "examples", ChangedResult: "changed model", Run: "run"}
"""Keys that the results of several commands have, by the name that stands for them on the page."""


def describe_json(command: str) -> str:
    """Return the keys of a command's JSON with their meanings."""
    hint = typing.get_type_hints(importlib.import_module(f"headjax.commands.{command}").run)["return"]
    kinds = typing.get_args(hint) or [hint]
    return "; or ".join(f"*{SHARED[cls]}*" if cls in SHARED else describe_keys(cls) for cls in kinds)


def describe_keys(cls: type) -> str:
    """Return the keys of a result with their meanings, and the name of those that it shares with other results."""
    base = next((each for each in cls.__mro__[1:] if each in SHARED), None)
    inherited = keys_of(base) if base else {}
    meanings = {name: meaning.rstrip(".") for name, meaning in keys_of(cls).items() if name not in inherited}
    keys = [f"`{name}`" + (f" ({meaning})" if meaning else "") for name, meaning in meanings.items()]
    return ", ".join([f"*{SHARED[base]}*", *keys] if base else keys)


def json_page() -> str:
    """Return the page of the keys of every command's JSON, as its result declares them."""
    keys = {f"*{name}*": describe_keys(cls) for cls, name in SHARED.items()}
    keys |= {f"`{name}`": describe_json(name) for name in COMMANDS}
    intro = (
        "Every command takes `--json PATH` (`-` is stdout) and writes these keys. Heads are named "
        "`stack/layer/head`; `metrics` are by name. All results have `command_seconds`, without Python's start. "
        "Numbers that are not finite are null. `selection`, `evaluation` and `training` describe "
        "[examples](../tasks.md#which-examples-order-heads-and-which-judge-them): `task`, `split`, `examples`, "
        "`form` where it was recognised, and `rule` where a single split was divided; null where none were read. "
        "A key with a condition is left out "
        "where the condition does not hold. A name in *italics* stands for the keys in its row."
    )
    return "\n\n".join(("# JSON results", intro, table(("command", "keys"), keys.items()))) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "names.md": names_page,
    "config.md": config_page,
    "commands.md": commands_page,
    "tasks.md": tasks_page,
    "json.md": json_page,
}
"""The generated pages by file."""


def write_pages(folder: Path) -> None:
    """Write every page to a folder; a page that has not changed is left alone, so that Sphinx does not read it anew."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        text, path = page(), folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
