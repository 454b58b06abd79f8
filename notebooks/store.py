"""Run every notebook from top to bottom and store it with its outputs: `make notebooks`."""

from __future__ import annotations

import resource
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
        NotebookClient(notebook, timeout=3600, record_timing=False, resources=resources).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    text = nbformat.writes(notebook).replace(f"{FOLDER.parent}/", "")
    stored = nbformat.reads(text, as_version=4)
    stored.metadata = metadata
    return stored


def processor_seconds() -> float:
    """Return the processor time of the kernels that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run and store the notebooks that are named, or all."""
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        path, begun, before = FOLDER / f"{name}.ipynb", time.monotonic(), processor_seconds()
        nbformat.write(run(path), path)
        print(f"{path.name}: {time.monotonic() - begun:.0f} s, {processor_seconds() - before:.0f} s of processor time")


if __name__ == "__main__":
    main()
