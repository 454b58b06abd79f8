"""`headjax import`: the keys of its JSON, and the type of the weights."""

import json

import pytest

from headjax.cli import main
from headjax.models.model import load
from tests.hub.directories import BERT, model_of


@pytest.fixture
def bert(tmp_path):
    """A model directory of a tiny BERT."""
    model_of(BERT).save(tmp_path / "model")
    return tmp_path / "model"


def test_import(bert, tmp_path, capsys):
    assert main(["export", str(bert), str(tmp_path / "hf")]) == 0
    capsys.readouterr()
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "out"), "--dtype", "bfloat16", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["family"] == "bert"
    assert data["dtype"] == ["bfloat16"]
    assert data["parameters"] == load(tmp_path / "out").num_parameters == load(bert).num_parameters
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "no"), "--dtype", "int8"]) == 2
    assert "--dtype: must be one of float32, bfloat16, float16, got 'int8'" in capsys.readouterr().err


def test_the_files_that_hold_no_tokenizer_are_named(bert, tmp_path, capsys):
    """llama2.c's `tok512.bin` is none of them."""
    assert main(["export", str(bert), str(tmp_path / "hf")]) == 0
    (tmp_path / "hf" / "tok512.bin").write_bytes(b"0")
    capsys.readouterr()
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "tokenizer.json" in said
    assert "vocab.txt" in said
    (tmp_path / "hf" / "tokenizer.json").mkdir()
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "next")]) == 2
    assert "hf/tokenizer.json: " in capsys.readouterr().err
