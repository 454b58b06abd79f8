"""The notebook runs from top to bottom on a tiny setting, and its cells say what they should."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "quickstart.ipynb"


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Everything the notebook prints."""
    folder = tmp_path_factory.mktemp("notebook")
    text = "\n\n".join(f"Paragraph {i} says that {i * i} is the square of {i}, no more." for i in range(1500))
    (folder / "text.txt").write_text(text)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    settings = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    assert len(settings) == 1
    for name, value in {"STEPS": "4", "TEXT": '"text.txt"'}.items():
        settings[0].source, count = re.subn(rf"^{name} = .*$", f"{name} = {value}", settings[0].source, flags=re.M)
        assert count == 1
    # A kernel of its own must not see the eight devices of this process, nor the warnings-as-errors of pytest.
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    return "".join(output.get("text", "") for output in outputs if output.output_type == "stream")


def test_removing_for_real_is_gating(printed):
    gated, removed = re.search(r"gated ([\d.]+), removed ([\d.]+)", printed).groups()
    assert float(gated) == pytest.approx(float(removed), abs=0.002 * float(removed))


def test_full_rank_conversion_keeps_the_model(printed):
    before = re.search(r"^ +0% of heads removed: perplexity ([\d.]+)", printed, flags=re.M)[1]
    converted = re.search(r"^ 128 shared dimensions: relative error ([\d.]+), perplexity ([\d.]+)", printed, flags=re.M)
    assert float(converted[1]) < 1e-3
    assert float(converted[2]) == pytest.approx(float(before), abs=0.11)


def test_a_saved_model_comes_back(printed):
    removed = re.search(r"removed ([\d.]+)$", printed, flags=re.M)[1]
    assert f"perplexity after loading: {removed}" in printed


def test_the_repository_holds_no_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in notebook.cells)
