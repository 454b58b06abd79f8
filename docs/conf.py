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

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 4
nitpicky = True
smartquotes = False  # `--option` stays as it is typed

html_theme = "furo"
html_title = f"headjax {__version__}"
html_show_sphinx = False
html_static_path: list[str] = []


def setup(app: Any) -> None:
    """Write the generated pages before Sphinx looks for sources."""
    app.connect("config-inited", lambda app, config: reference.write_pages(HERE / "reference"))
