"""Report pages: one HTML file that needs nothing else, on a desk and on a phone."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from headjax.report.tables import Table
from headjax.storage.files import write_file

if TYPE_CHECKING:
    from headjax.report.drawing import Plot


@dataclasses.dataclass(frozen=True)
class Picture:
    """A plot with its caption, which explains plot and measurement; of a section's named ones a menu shows one."""

    plot: Plot
    caption: str
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page."""

    title: str
    text: str = ""
    figures: Sequence[Picture] = ()
    table: Table | None = None
    viewer: Mapping[str, Any] | None = None


def render_page(
    title: str, summary: str, sections: Sequence[Section], footer: str = "", facts: Mapping[str, str] | None = None
) -> str:
    """The page as HTML text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("headjax", "report")
    settings: Any = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=loader, **settings)
    filters: dict[str, Any] = {
        "paragraphs": _paragraphs,
        "base64": lambda data: base64.b64encode(data).decode(),
        # Within a script element, which no text in it can end.
        "json": lambda data: Markup(json.dumps(data, allow_nan=False).replace("<", "\\u003c")),
    }
    environment.filters |= filters
    scripts = ["page.js", "viewer.js"] if any(section.viewer is not None for section in sections) else ["page.js"]
    script = "\n".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in scripts)
    return environment.get_template("page.html").render(
        title=title,
        summary=summary,
        facts=facts or {},
        footer=footer,
        sections=sections,
        script=Markup(script),
        script_digest=hashlib.sha256(script.encode()).digest(),
    )


def write_page(path: str | os.PathLike[str], page: str) -> Path:
    """Write a page whole or not at all, and return its path."""
    # Text decoded from broken bytes can hold characters that UTF-8 cannot; they are spelled out.
    return write_file(path, page.encode("utf-8", "backslashreplace"))


def _paragraphs(text: str) -> list[Markup]:
    """Escaped paragraphs, with `backticks` as code; a lone backtick means itself."""
    code, paragraphs = Markup("<code>{}</code>"), []
    for block in filter(None, re.split(r"\n\s*\n", text.strip())):
        parts = block.split("`") if block.count("`") % 2 == 0 else [block]
        inline = (code.format(part) if i % 2 else escape(part) for i, part in enumerate(parts))
        paragraphs.append(Markup("").join(inline))
    return paragraphs
