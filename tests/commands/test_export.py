"""`headjax export`: a directory that is read again and compared."""

import json

import pytest

from headjax.cli import main
from tests.hub.directories import BERT, model_of


@pytest.fixture
def bert(tmp_path):
    """A model directory of a tiny BERT."""
    model_of(BERT).save(tmp_path / "model")
    return tmp_path / "model"


def test_export(bert, tmp_path, capsys):
    assert main(["export", str(bert), str(tmp_path / "hf"), "--check", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {"family", "layout", "tensors", "bytes", "max_difference", "directory"} <= data.keys()
    assert data["family"] == "bert"
    assert data["max_difference"] < 1e-5
    assert (tmp_path / "hf" / "model.safetensors").is_file()
