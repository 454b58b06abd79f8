"""Every notebook runs from top to bottom in a tiny setting, and its cells say what they should."""

import json
import re
import tomllib
from pathlib import Path

import nbformat
import pytest
from huggingface_hub import try_to_load_from_cache
from nbclient import NotebookClient

from tests.closeness import tolerance

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
SUMS = 4 * 10 * 128 + 4 * 256 + 2048
"""Terms on the way to a loss of the decoder that headjax carries."""


def run(name, folder, **settings):
    """Run a notebook with other settings; return all that it prints, and the number of its plots."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    for key, value in settings.items():
        assert re.search(rf"^{key} = ", cell.source, flags=re.M)
        cell.source += f"\n{key} = {value!r}"
    # A kernel of its own must not see the eight devices of this process, nor the warnings-as-errors of pytest.
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    plots = sum("image/png" in output.get("data", {}) for output in outputs)
    return "".join(output.get("text", "") for output in outputs if output.output_type == "stream"), plots


@pytest.mark.whole
def test_the_quickstart_removes_heads_for_real_and_lets_the_others_share(tmp_path):
    printed, plots = run("quickstart", tmp_path, BLOCKS=8, SCORED=8)
    gated, removed = map(float, re.search(r"gated ([\d.]+), removed ([\d.]+)", printed).groups())
    assert gated == pytest.approx(removed, rel=tolerance(SUMS), abs=0.001)
    assert f"perplexity after loading: {removed:.3f}" in printed
    rows = re.findall(r"^(least|random)[^:]*: 0% ([\d.]+).* 100% ([\d.]+)$", printed, flags=re.M)
    assert len(rows) == 2
    for _, whole, none in rows:
        assert float(none) > 1.5 * float(whole)
    shared = re.findall(r"plain ([\d.]+)  calibrated ([\d.]+)  cache ([\d.]+)", printed)
    assert [cache for *_, cache in shared] == ["2.00", "1.00"]
    assert all(float(calibrated) < float(plain) for plain, calibrated, _ in shared)
    assert re.search(r"1,088,256 -> (8|9)\d\d,\d{3} parameters, perplexity", printed)
    assert plots == 3


@pytest.mark.whole
def test_the_papers_in_small(tmp_path):
    printed, plots = run("papers", tmp_path, BLOCKS=8, SHARED=(128, 64), HEADS=2, LAYERS=2, STEPS=6)
    ranks = [tuple(map(int, found)) for found in re.findall(r"heads of +(\d+): (\d+) of 64 singular", printed)]
    assert ranks == [(8, 8), (16, 16), (32, 32), (64, 63)]
    whole, full, shared = map(float, re.findall(r"perplexity ([\d.]+), ", printed))
    assert full == pytest.approx(whole, rel=1e-3)
    assert shared > whole
    assert re.findall(r"(\d+) layers, loss on held-out text [\d.]+", printed) == ["2", "4", "4"]
    assert plots == 2


@pytest.mark.whole
def test_a_flax_model_without_a_line_of_headjax_loses_heads_on_eight_devices(tmp_path):
    printed, plots = run("flax_model", tmp_path, STEPS=12, WIDTH=16, LAYERS=2, HEADS=4, LENGTH=16, SCORED=8)
    assert "'model') on 8 devices" in printed
    assert "layers.1.attn: 4 heads of 4" in printed
    assert float(re.search(r"difference of an importance: (\S+)", printed)[1]) < 1e-3
    removed, _, trained = re.search(
        r"removed ([\d.]+), repaired ([\d.]+), after 3 more steps ([\d.]+)", printed
    ).groups()
    assert float(trained) < float(removed)
    assert plots == 2


@pytest.fixture
def cached(monkeypatch):
    """Skip the test of a notebook whose model or data set is not in the Hub's cache on this machine."""

    def check(model, data, file):
        for name, kind, wanted in ((model, "model", "model.safetensors"), (data, "dataset", file)):
            if not isinstance(try_to_load_from_cache(name, wanted, repo_type=kind), str):
                pytest.skip(f"{name} is not in the cache of the Hugging Face Hub (HF_HOME)")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    return check


@pytest.mark.whole
def test_an_embedding_model_goes_in_and_a_smaller_one_comes_out(cached, tmp_path):
    cached("sentence-transformers/all-mpnet-base-v2", "nyu-mll/glue", "stsb/validation-00000-of-00001.parquet")
    printed, plots = run("embedding_model", tmp_path, CHOSEN=16, JUDGED=32)
    assert "parameters 109,486,464 -> 102,401,664" in printed
    whole, pruned = map(float, re.search(r"Spearman correlation ([\d.]+) -> ([\d.]+)", printed).groups())
    assert abs(whole - pruned) < 0.1
    if "not installed" not in printed:
        torch = [float(found) for found in re.findall(r"^\w+ +Spearman ([\d.]+) on 32 pairs", printed, flags=re.M)]
        assert torch == pytest.approx([whole, pruned], abs=0.002)
    assert plots == 1


@pytest.mark.whole
def test_a_decoder_keeps_half_of_its_cache(cached, tmp_path):
    cached(
        "HuggingFaceTB/SmolLM2-135M-Instruct", "Salesforce/wikitext", "wikitext-2-raw-v1/train-00000-of-00001.parquet"
    )
    printed, plots = run("kv_cache", tmp_path, CALIBRATION=4, BLOCKS=4)
    before, after, times = map(float, re.search(r"([\d.]+) -> ([\d.]+) \(([\d.]+) times", printed).groups())
    assert 1 < times < 1.5
    assert after == pytest.approx(before * times, rel=0.01)
    whole, cache = map(float, re.search(r"cache ([\d.]+) -> ([\d.]+) KiB", printed).groups())
    assert cache < 0.51 * whole
    assert plots == 1


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebooks_are_stored_with_their_outputs_and_without_private_names(path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    assert pictures >= 1
    assert any(output.get("text") for output in outputs)
    assert not re.search(r"(?<![\w.])/(home|root|tmp|work|usr)/", json.dumps(outputs))
    assert path.stat().st_size < 500_000
    assert not re.search(r"from headjax\.|import headjax\.", json.dumps([cell.source for cell in cells]))


def test_readme_lists_every_notebook_under_the_repository_s_address():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project.get("urls", {}).get("Repository", "")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\(notebooks/(\w+)\.ipynb\)", readme)) == [path.stem for path in PATHS]
    badges = set(re.findall(r"https://colab\.research\.google\.com/github/(\S+)\)", readme))
    place = address.removeprefix("https://github.com/")
    assert badges == ({f"{place}/blob/main/notebooks/{path.name}" for path in PATHS} if address else set())
    for path in PATHS:
        assert f'REPOSITORY = "{address}"' in path.read_text(encoding="utf-8").replace('\\"', '"')
