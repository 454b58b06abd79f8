"""`headjax convert`: metrics kept at full rank, calibration, costs, sizes, and requests that it refuses."""

from __future__ import annotations

import json

import pytest

from headjax.attention import MultiHead
from headjax.cli import main
from headjax.conversion import convert as convert_model
from headjax.hub import from_huggingface, to_huggingface
from headjax.models.model import load
from tests import tiny
from tests.closeness import close_to, tolerance
from tests.commands.language_folder import write_language_folder
from tests.hub.directories import LLAMA, assert_equal, model_of


def test_convert_at_full_rank_keeps_the_metrics(run, folder):
    data = run("convert", "--to", "collaborative:shared_dim=16", out="shared")
    assert {"error_per_layer", "parameters", "metrics"} <= data.keys()
    assert [(error["stack"], error["layer"]) for error in data["error_per_layer"]] == [("decoder", 0), ("decoder", 1)]
    assert all(error["relative_error"] < tolerance(tiny.SUMS) for error in data["error_per_layer"])
    assert data["metrics"]["loss"] == close_to(data["metrics_before"]["loss"], sums=tiny.SUMS)
    assert load(folder / "shared").num_parameters == data["parameters"]


def test_without_a_task_the_model_goes_from_file_to_file(folder, capsys):
    """With the same arrays, bit by bit, as from memory."""
    words = [str(folder / "model"), str(folder / "streamed"), "--to", "collaborative:shared_dim=8"]
    assert main(["convert", *words]) == 0
    capsys.readouterr()
    expected = convert_model(load(folder / "model"), "collaborative:shared_dim=8").model
    found = load(folder / "streamed")
    assert found.config == expected.config
    assert_equal(found.params, expected.params)


def test_convert_some_layers_with_calibration(run, folder):
    data = run("convert", "--to", "collaborative:shared_dim=8", "--layers", "1", "--calibrate", "2", out="calibrated")
    assert [error["layer"] for error in data["error_per_layer"]] == [1]
    assert isinstance(load(folder / "calibrated").config.attentions()["decoder"][0], MultiHead)


@pytest.fixture
def convert(folder, capsys):
    """Converts a model of 16 positions and returns the JSON and what was printed for people."""
    if not (folder / "short").exists():
        (folder / "short").mkdir()
        write_language_folder(folder / "short", max_length=16)

    def convert(out, *words):
        file = folder / "result.json"
        assert main(["convert", str(folder / "short" / "model"), str(folder / out), *words, "--json", str(file)]) == 0
        return json.loads(file.read_text()), capsys.readouterr().out

    return convert


def test_convert_says_what_attention_costs(convert, folder):
    data, shown = convert("short-shared", "--to", "collaborative:shared_dim=12")
    length = data["break_even_length"]
    assert f"takes more FLOPs than before above {length} tokens" in shown
    costs = {row["length"]: row for row in data["costs"]}
    assert list(costs) == [64, 128, 256, 512, 1024, 2048]
    assert length < 64
    assert costs[64]["flops"] > costs[64]["flops_before"]
    # Per token and layer one shared key of 12, 16 values and two heads' content, where there were 16 keys and values.
    assert costs[64]["cache"] == 64 * 2 * (12 + 16 + 2)
    assert costs[64]["cache_before"] == 64 * 2 * 32
    steps = [row[name] for row in data["costs"] for name in ("step_seconds_before", "step_seconds")]
    assert all(0.0 < seconds < 1.0 for seconds in steps)
    assert "Cached before" in shown
    _, shown = convert("gated", "--to", "grouped:kv_heads=1")
    assert "no more FLOPs than before at any length" in shown


def test_a_size_is_shared_out_among_layers(convert, folder):
    full, _ = convert("full", "--to", "collaborative:shared_dim=16")
    asked = full["parameters"] - 6 * 34
    data, _ = convert("small", "--to", "collaborative", "--parameters", str(asked))
    sizes = [layer.shared_dim for layer in load(folder / "small").config.attentions()["decoder"]]
    # One dimension is a column of W_Q and of W_K and a number for each of two heads; ranks are whole blocks of 8.
    assert data["parameters"] == full["parameters"] - (32 - sum(sizes)) * 34 <= asked
    assert sum(sizes) == 24


def test_calibrate_counts_examples_in_full_batches(run):
    words = ("--to", "collaborative:shared_dim=8")
    assert run("convert", *words, "--calibrate", "20", out="by-examples")["selection"]["examples"] == 16
    assert run("convert", *words, out="plain")["selection"] is None


@pytest.mark.parametrize(
    ("to", "layout"), [("grouped:kv_heads=1", "native"), ("latent:rank=4", "padded"), ("gated", None)]
)
def test_convert_says_what_an_imported_model_is_exported_as(to, layout, tmp_path, capsys):
    to_huggingface(model_of(LLAMA), tmp_path / "hf")
    from_huggingface(tmp_path / "hf").save(tmp_path / "model")
    words = [str(tmp_path / "model"), str(tmp_path / "out"), "--to", to, "--json", str(tmp_path / "json")]
    assert main(["convert", *words]) == 0
    export = json.loads((tmp_path / "json").read_text())["export"]
    assert (export["from"], export["layout"]) == ("llama", layout)
    assert ("export to Hugging Face: " in capsys.readouterr().out) == (layout != "native")
