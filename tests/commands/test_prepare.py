"""`headjax prepare`: shards that training reads, rows that resume, vocabularies that data name."""

import json
import subprocess
import sys

import pytest

import headjax
from tests import tiny
from tests.closeness import close_to
from tests.command_line import main
from tests.data.vocabulary import write_lines

CONFIG = """
from ml_collections import ConfigDict


def get_config(arg=""):
    return ConfigDict({
        "model": {
            "kind": "encoder_decoder", "vocab_size": 300, "width": 16, "num_layers": 1,
            "attention": {"kind": "multi_head", "num_heads": 2, "head_dim": 8},
            "hidden": 16, "activation": "relu", "positions": "sinusoidal", "scale_embeddings": True,
        },
        "data": {"task": f"multi30k:{arg}", "length": 24},
        "batch_size": 4, "steps": 6, "tensorboard": False,
        "optimizer": {"kind": "adamw", "schedule": {"kind": "constant_rate", "peak": 1e-2}},
    })
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The JSON of line-aligned sentences in `text`, prepared into `folder`, by `words`."""
    home = tmp_path_factory.mktemp("prepare")
    (home / "text").mkdir()
    for split, count in (("train", 60), ("val", 6)):
        for language, word in (("en", "dog"), ("de", "Hund")):
            write_lines(home / "text" / f"{split}.{language}", *(f"{word} {i} {word}" for i in range(count)))
    out, result = home / "prepared", home / "result.json"
    words = ["prepare", "multi30k", "--source", str(home / "text"), "--out", str(out), "--length", "24"]
    assert main([*words, "--vocab-size", "280", "--json", str(result)]) == 0
    return json.loads(result.read_text()) | {"folder": str(out), "words": words}


def test_prepare_and_go_on_with_its_own_vocabulary(prepared, capsys):
    assert main([*prepared["words"], "--json", "-"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["written"], again["tokenizer"]) == (0, prepared["tokenizer"])
    assert prepared["shards"] == prepared["written"] == 2
    assert prepared["splits"]["train"]["pairs"] == 60
    assert prepared["examples"] == prepared["splits"]["train"]["examples"] + 6
    assert prepared["splits"]["train"]["examples"] < 30  # several pairs a row
    assert prepared["vocab_size"] == 280


@pytest.mark.whole
def test_training_on_it_imports_no_tensorflow(prepared, tmp_path, monkeypatch):
    """In a process of its own: prepared shards, Grain, training, evaluation and the model directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.py").write_text(CONFIG)
    words = ["train", "--config", f"config.py:{prepared['folder']}", "--workdir", "run", "--json", "train.json"]
    code = f"""
import sys
from headjax.cli import main
assert main({words!r}) == 0
assert "grain" in sys.modules
assert not {{"tensorflow", "tensorflow_datasets", "seqio", "torch"}} & set(sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    trained = json.loads((tmp_path / "train.json").read_text())
    assert trained["metrics"]["perplexity"] < 300
    words = ["evaluate", "run/model", "--task", prepared["folder"], "--json", "metrics.json"]
    assert main(words) == 0
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert (found["examples"], found["task"]) == (6, "multi30k")
    assert found["metrics"]["perplexity"] == close_to(trained["metrics"]["perplexity"], sums=16 * tiny.SUMS)
    assert 0 <= found["metrics"]["bleu"] <= 100
    assert "tok:13a" in found["bleu_signature"]
    assert main([*words, "--beams", "0"]) == 0
    assert json.loads((tmp_path / "metrics.json").read_text()).keys() == found.keys() - {"bleu_signature"}
    assert main([*words, "--beams", "-1"]) == 2


def test_forms_change_by_name(tmp_path):
    task = f"bert_pretraining:{write_lines(tmp_path / 'text.txt', *map(str, range(999)))}"
    form = headjax.data.DataConfig(task=task, form={"max_predictions": 10, "rate": 0.2}).open().form
    assert (form.max_predictions, form.rate) == (10, 0.2)
    for fields in ({"max_predictions": "many"}, {"max_prediction": 2}):
        with pytest.raises(headjax.ConfigError, match="max_prediction"):
            headjax.data.DataConfig(task=task, form=fields).open()
