"""Docstrings and signatures as Markdown."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises")
"""Titles of the parts of a docstring that follow its text."""

LINE = 100
"""Characters of a signature on one line; longer ones have a parameter a line."""


class Docstring(NamedTuple):
    """A docstring in parts.

    Attributes:
        text: everything before the first section.
        sections: for each section its entries by name; of `Returns` and `Yields`, one entry without a name.
    """

    text: str
    sections: Mapping[str, Mapping[str, str]]

    @property
    def summary(self) -> str:
        """The first paragraph, on one line."""
        return _joined(self.text.split("\n\n")[0])


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


def _joined(text: str) -> str:
    return " ".join(text.split())


def escape(text: str) -> str:
    """Return text as Markdown in which a `<` outside of code begins no tag."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_joined(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def described(found: Any, name: str) -> str:
    """Return the signature and the docstring of a function, class or property as Markdown."""
    docstring = parse_docstring(inspect.getdoc(found))
    parts = [f"```python\n{signature(found, name)}\n```", escape(docstring.text)]
    for title, entries in docstring.sections.items():
        parts.append(f"**{title}**")
        parts += [_entry(entry, text) for entry, text in entries.items()]
    return "\n\n".join(part for part in parts if part)


def _entry(name: str, text: str) -> str:
    text = escape(text)
    return f"* `{name}`: " + text.replace("\n", "\n  ") if name else text


def signature(found: Any, name: str) -> str:
    """Return a signature, one line or a parameter a line."""
    if isinstance(found, property):
        return name
    try:
        parameters = inspect.signature(found)
    except (TypeError, ValueError):
        return name
    own = [each for each in parameters.parameters.values() if each.name != "self"]
    shown = f"{name}{parameters.replace(parameters=own)}"
    if len(shown) <= LINE:
        return _unquoted(shown)
    lines, last = [], None
    for each in own:
        if each.kind is each.KEYWORD_ONLY and last not in (each.KEYWORD_ONLY, each.VAR_POSITIONAL):
            lines.append("*")
        lines.append(str(each))
        last = each.kind
    returns = parameters.return_annotation
    after = "" if returns is parameters.empty else f" -> {inspect.formatannotation(returns)}"
    return _unquoted("\n".join((f"{name}(", *(f"    {line}," for line in lines), f"){after}")))


def _unquoted(text: str) -> str:
    """Return a signature whose annotations, which are text at run time, stand without quotes."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
