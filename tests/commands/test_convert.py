"""`headjax convert`: what it costs, what is converted, and what an imported model becomes."""

import json

import pytest

from headjax.attention import MultiHead
from headjax.cli import main
from headjax.conversion import convert as convert_model
from headjax.hub import from_huggingface, to_huggingface
from headjax.models.model import load
from tests.closeness import assert_trees_equal
from tests.hub.directories import LLAMA, model_of

TASK = "--task text.txt --limit 16 --batch-size 8"


def test_without_a_task_the_model_goes_from_file_to_file(run, folder, tmp_path):
    """With the same arrays, bit by bit, as from memory."""
    run("convert model OUT/streamed --to collaborative:shared_dim=8")
    expected = convert_model(load(folder / "model"), "collaborative:shared_dim=8").model
    found = load(tmp_path / "streamed")
    assert found.config == expected.config
    assert_trees_equal(found.params, expected.params)


def test_convert_says_what_attention_costs(run):
    data, told = run("convert model OUT/shared --to collaborative:shared_dim=12")
    length = data["break_even_length"]
    assert f"takes more FLOPs than before above {length} tokens" in told
    costs = {row["length"]: row for row in data["costs"]}
    assert list(costs) == [64, 128, 256, 512, 1024, 2048]
    assert length < 64
    assert costs[64]["flops"] > costs[64]["flops_before"]
    # Per token and layer one shared key of 12, 16 values and two heads' content, where there were 16 keys and values.
    assert costs[64]["cache"] == 64 * 2 * (12 + 16 + 2)
    assert costs[64]["cache_before"] == 64 * 2 * 32
    steps = [row[name] for row in data["costs"] for name in ("step_seconds_before", "step_seconds")]
    assert all(0.0 < seconds < 1.0 for seconds in steps)
    assert "no more FLOPs than before at any length" in run("convert model OUT/grouped --to grouped:kv_heads=1").told


def test_a_size_is_shared_out_among_layers(run, tmp_path):
    full = run("convert model OUT/full --to collaborative:shared_dim=16").data
    asked = full["parameters"] - 6 * 34
    data = run(f"convert model OUT/small --to collaborative --parameters {asked}").data
    sizes = [layer.shared_dim for layer in load(tmp_path / "small").config.attentions()["decoder"]]
    # One dimension is a column of W_Q and of W_K and a number for each of two heads; ranks are whole blocks of 8.
    assert data["parameters"] == full["parameters"] - (32 - sum(sizes)) * 34 <= asked
    assert sum(sizes) == 24


def test_some_layers_are_converted_and_learn_from_the_original(run, tmp_path):
    data = run(f"convert model OUT/some {TASK} --to collaborative:shared_dim=8 --layers 1 --calibrate 20").data
    assert [error["layer"] for error in data["error_per_layer"]] == [1]
    assert data["selection"]["examples"] == 16  # full batches
    assert isinstance(load(tmp_path / "some").config.attentions()["decoder"][0], MultiHead)
    plain = run(f"convert model OUT/plain {TASK} --to grouped:kv_heads=1").data
    words = "--fine-tune 3 --learning-rate 1e-3 --labels 0"
    tuned = run(f"convert model OUT/learned {TASK} --to grouped:kv_heads=1 {words}").data
    assert [entry["action"] for entry in load(tmp_path / "learned").history] == ["convert", "distill"]
    assert tuned["output_difference"] < plain["output_difference"]


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
