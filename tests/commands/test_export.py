"""`headjax export`: a directory that is read again and compared."""

import json

import pytest

from headjax.cli import main
from headjax.heads.pruning import prune
from headjax.models.model import load
from tests.hub.directories import BERT, model_of


@pytest.fixture
def bert(tmp_path):
    """A model directory of a tiny BERT."""
    model_of(BERT).save(tmp_path / "model")
    return tmp_path / "model"


def test_export(bert, tmp_path, capsys):
    assert main(["export", str(bert), "--out", str(tmp_path / "hf"), "--check", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {"family", "layout", "tensors", "bytes", "max_difference", "directory"} <= data.keys()
    assert data["family"] == "bert"
    assert data["max_difference"] < 1e-5
    assert (tmp_path / "hf" / "model.safetensors").is_file()


def test_the_cost_of_zeros_is_told(bert, tmp_path, capsys):
    prune(load(bert), ["encoder/1/0"]).save(tmp_path / "smaller")
    assert main(["export", str(tmp_path / "smaller"), str(tmp_path / "hf"), "--json", str(tmp_path / "json")]) == 0
    data = json.loads((tmp_path / "json").read_text())
    assert data["layout"] == "padded"
    assert data["padding"].keys() == {"bytes", "flops", "cache_bytes_per_token", "length"}
    assert "padding to the family's shapes: +280 B of weights, +" in capsys.readouterr().out


def test_an_unknown_family_is_refused(bert, tmp_path, capsys):
    assert main(["export", str(bert), str(tmp_path / "hf"), "--family", "brt"]) == 2
    assert "'brt'" in capsys.readouterr().err
    assert not (tmp_path / "hf").exists()
