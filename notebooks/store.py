"""Run every notebook from top to bottom and store it with its outputs: `make notebooks`."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent


def run(path: Path) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of a run in an empty folder: no warnings, times or places of this machine."""
    notebook = nbformat.read(path, as_version=4)
    metadata = notebook.metadata
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=600, record_timing=False, resources=resources).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    text = nbformat.writes(notebook).replace(f"{FOLDER.parent}/", "")
    stored = nbformat.reads(text, as_version=4)
    stored.metadata = metadata
    return stored


def main() -> None:
    """Run and store the notebooks that are named, or all."""
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        path, begun = FOLDER / f"{name}.ipynb", time.monotonic()
        nbformat.write(run(path), path)
        print(f"{path.name}: {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
