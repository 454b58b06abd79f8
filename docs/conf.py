"""Sphinx builds the documentation site from this folder: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import reference  # noqa: E402

from headjax.version import __version__  # noqa: E402

project = "headjax"
copyright = "the headjax authors, Apache-2.0"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
default_role = "code"  # `names` in docstrings
autodoc_member_order = "bysource"
napoleon_use_ivar = True
exclude_patterns = ["_build"]
myst_heading_anchors = 4
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other packages
smartquotes = False  # `--option` stays as it is typed

html_theme = "furo"
html_title = f"headjax {__version__}"
html_show_sphinx = False
html_static_path: list[str] = []


def keep_formulas(app: Any, what: str, name: str, found: object, options: Any, lines: list[str]) -> None:
    """Make an indented block after a paragraph a literal one, as Markdown has it."""
    for number in range(2, len(lines)):
        before, here = lines[number - 2], lines[number]
        if here.startswith("    ") and not lines[number - 1].strip() and before and not before.startswith(" "):
            lines[number - 1] = "\n::\n"
    lines[:] = "\n".join(lines).split("\n")


def setup(app: Any) -> None:
    """Write the generated pages before Sphinx looks for sources."""
    app.connect("config-inited", lambda app, config: reference.write_pages(HERE / "reference"))
    app.connect("autodoc-process-docstring", keep_formulas, priority=400)
