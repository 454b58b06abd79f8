"""`headjax import` and `inspect`: what directories hold."""

import importlib
import json

import pytest

import headjax
from tests.command_line import main
from tests.hub.directories import BERT, model_of


@pytest.fixture
def exported(tmp_path, capsys):
    """A Hugging Face directory without a tokenizer."""
    model_of(BERT).save(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "hf")]) == 0
    capsys.readouterr()
    return tmp_path / "hf"


def test_weights_are_imported_in_the_type_that_is_asked_for(exported, tmp_path, capsys):
    assert main(["import", str(exported), str(tmp_path / "out"), "--dtype", "bfloat16", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["family"], data["dtype"]) == ("bert", ["bfloat16"])
    assert (
        data["parameters"]
        == headjax.load(tmp_path / "out").num_parameters
        == headjax.load(tmp_path / "model").num_parameters
    )


def test_the_files_that_hold_no_tokenizer_are_named(exported, tmp_path, capsys):
    """llama2.c's `tok512.bin` is none of them."""
    (exported / "tok512.bin").write_bytes(b"0")
    assert main(["import", str(exported), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "tokenizer.json" in said
    assert "vocab.txt" in said


number_list = importlib.import_module("headjax.commands.inspect").number_list


@pytest.mark.parametrize(
    ("numbers", "text"), [((), "none"), ((3,), "3"), ((0, 1, 2, 3, 7), "0-3, 7"), ((1, 3, 4), "1, 3-4")]
)
def test_numbers_are_written_as_ranges(numbers, text):
    assert number_list(numbers) == text
