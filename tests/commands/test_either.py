"""MODEL of commands may be a Hugging Face directory; OUT is then one too, with the files that came with it."""

import json

import numpy as np
import pytest

import headjax
from tests.command_line import main
from tests.commands.language_folder import write_classifier
from tests.hub.directories import BERT, CONFIGS, LLAMA, example_batch, model_of


def call(capsys, *words):
    """The JSON of a command and what it told people, as one line."""
    assert main([*map(str, words), "--json", "-"]) == 0
    printed = capsys.readouterr()
    return json.loads(printed.out), " ".join(printed.err.split())


@pytest.fixture
def bert(tmp_path):
    headjax.to_huggingface(model_of(BERT), tmp_path / "bert")
    (tmp_path / "bert" / "README.md").write_text("# A model\n")
    return tmp_path / "bert"


@pytest.fixture
def untimed(monkeypatch):
    """No time is spent on timing models."""
    monkeypatch.setattr("headjax.commands.models.PATIENCE", -1.0)


@pytest.mark.usefixtures("untimed")
def test_what_is_pruned_and_converted_stays_a_directory_of_theirs(bert, tmp_path, capsys):
    _, told = call(capsys, "prune", bert, tmp_path / "ragged", "--remove", "encoder/0/1")
    assert "layout remote" in told
    assert json.loads((tmp_path / "ragged" / "config.json").read_text())["model_type"] == "headjax_encoder"
    assert (tmp_path / "ragged" / "README.md").read_text() == "# A model\n"
    call(capsys, "convert", tmp_path / "ragged", tmp_path / "fixed", "--to", "fixed:head_dim=4")
    again = headjax.from_huggingface(tmp_path / "fixed")
    batch = example_batch(again)
    np.testing.assert_allclose(
        again(batch).logits, headjax.from_huggingface(tmp_path / "ragged")(batch).logits, atol=1e-2
    )
    assert call(capsys, "inspect", tmp_path / "fixed")[0]["heads"] == 7
    call(capsys, "prune", bert, tmp_path / "ours", "--remove", "encoder/0/1", "--to", "headjax")
    kept = [attention.ids for attention in headjax.load(tmp_path / "ours").config.attention]
    assert kept == [(0, 2, 3), (0, 1, 2, 3)]


def test_what_is_made_ends_in_its_sizes_its_times_and_the_line_that_loads_it(bert, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("headjax.commands.models.BATCHES", (1, 2))
    found, told = call(capsys, "prune", bert, tmp_path / "ragged", "--remove", "encoder/0/1")
    assert found["bytes"] == (tmp_path / "ragged" / "model.safetensors").stat().st_size
    assert found["bytes_before"] == (bert / "model.safetensors").stat().st_size
    assert found["parameters"] < found["parameters_before"]
    assert all(found[name][size] > 0.0 for name in ("milliseconds", "milliseconds_before") for size in "12")
    assert f"on {found['processor']}." in told
    assert found["significance"] is None
    assert "cache_bytes_per_token" not in found
    classes = "AutoModelForSequenceClassification", "trust_remote_code=True"
    assert found["load"] == f"transformers.{classes[0]}.from_pretrained('{tmp_path / 'ragged'}', {classes[1]})"
    monkeypatch.setattr("headjax.commands.models.PATIENCE", 0.0)
    found, told = call(capsys, "prune", bert, tmp_path / "ours", "--remove", "encoder/0/1", "--to", "headjax")
    assert found["milliseconds"] == {"1": None, "2": None}
    assert "not timed" in told
    assert eval(found["load"], {"headjax": headjax}).num_parameters == found["parameters"]


@pytest.mark.usefixtures("untimed")
def test_the_plan_names_the_exports_before_the_work(bert, tmp_path, capsys):
    def plan(*words):
        found, told = call(capsys, *words)
        assert f"plan: exports in layout {', '.join((*found['exports'], 'onnx'))}" in told
        assert found["exports"][0] == ("native" if "layout native" in told else "remote")
        return found["exports"]

    assert plan("prune", bert, tmp_path / "one", "--remove", "1", "--by", "random") == ["remote", "padded"]
    for target, expected in {
        "collaborative:shared_dim=8": ["remote"],
        "grouped:kv_heads=2": ["remote", "padded"],
        "latent:rank=4": ["remote"],
        "deep": ["remote", "padded"],
    }.items():
        assert plan("convert", bert, tmp_path / target[:4], "--to", target) == expected
    headjax.to_huggingface(model_of(LLAMA), tmp_path / "llama", family="llama")
    latent = "convert", tmp_path / "llama", tmp_path / "turned", "--to", "latent:rank=4"
    assert plan(*latent) == ["remote"]
    words = "prune", tmp_path / "llama", tmp_path / "uniform", "--remove", "50%", "--by", "random", "--uniform"
    assert plan(*words) == ["native", "remote", "padded"]


def test_what_no_layout_holds_is_refused_before_the_work(tmp_path, capsys):
    headjax.to_huggingface(model_of(CONFIGS["bart"]), tmp_path / "bart", family="bart")
    words = ["convert", str(tmp_path / "bart"), str(tmp_path / "out"), "--to", "fixed:head_dim=4"]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("headjax: error: --format: no Hugging Face directory holds the result; use --format headjax")
    assert not (tmp_path / "out").exists()
    found, told = call(capsys, *words, "--format", "headjax")
    assert "plan: exports in layout onnx; not native: " in told
    assert found["exports"] == []
    assert headjax.load(tmp_path / "out").history[-1]["action"] == "convert"


@pytest.mark.whole
def test_fine_tuning_starts_from_and_ends_in_one(tmp_path, capsys):
    write_classifier(tmp_path)
    call(capsys, "export", tmp_path / "encoder", tmp_path / "hf")
    words = ("finetune", tmp_path / "hf", "--train", tmp_path / "films.tsv", "--steps", 2, "--evaluations", 1)
    (tmp_path / "runs").mkdir()
    for name, more in {"plain": (), "distilled": ("--teacher", tmp_path / "classifier")}.items():
        found, _ = call(capsys, *words[:2], tmp_path / "runs" / name, *words[2:], *more)
        assert found["classes"] == ["bad", "good"]
        config = json.loads((tmp_path / "runs" / name / "config.json").read_text())
        assert config["architectures"] == ["BertForSequenceClassification"]
        assert call(capsys, "evaluate", tmp_path / "runs" / name, "--task", tmp_path / "films.tsv")[0]["examples"] == 96
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"plain", "distilled"}
