"""`headjax import`, `inspect` and `verify`: what directories hold, and damage that is named."""

import importlib
import json
import shutil

import pytest

from headjax.cli import main
from headjax.models.model import load
from headjax.storage import integrity
from headjax.storage.files import hidden
from tests.hub.directories import BERT, model_of
from tests.test_cli import error_of


@pytest.fixture
def bert(tmp_path):
    """A model directory of a tiny BERT."""
    model_of(BERT).save(tmp_path / "model")
    return tmp_path / "model"


def test_weights_are_imported_in_the_type_that_is_asked_for(bert, tmp_path, capsys):
    assert main(["export", str(bert), str(tmp_path / "hf")]) == 0
    capsys.readouterr()
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "out"), "--dtype", "bfloat16", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["family"], data["dtype"]) == ("bert", ["bfloat16"])
    assert data["parameters"] == load(tmp_path / "out").num_parameters == load(bert).num_parameters


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


number_list = importlib.import_module("headjax.commands.inspect").number_list


@pytest.mark.parametrize(
    ("numbers", "text"), [((), "none"), ((3,), "3"), ((0, 1, 2, 3, 7), "0-3, 7"), ((1, 3, 4), "1, 3-4")]
)
def test_numbers_are_written_as_ranges(numbers, text):
    assert number_list(numbers) == text


NAMES = (
    "model/history.json",
    "model/params/_CHECKPOINT_METADATA",
    "model/params/d/x",
    "checkpoints/1/_CHECKPOINT_METADATA",
)


@pytest.fixture
def folder(tmp_path):
    """A workdir in small: a model directory and two checkpoints, the later of which has no record yet."""
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"content of {name}")
    for name in ("model", "checkpoints/1"):
        integrity.write_record(tmp_path / name)
    (tmp_path / "checkpoints" / "2").mkdir()
    (tmp_path / "checkpoints" / "2" / "_CHECKPOINT_METADATA").write_text("")
    return tmp_path


def verify(capsys, folder):
    code = main(["verify", str(folder), "--json", "-"])
    return code, json.loads(capsys.readouterr().out)


def test_an_intact_folder(folder, capsys):
    code, found = verify(capsys, folder)
    assert code == 0
    assert (found["files"], found["damaged"]) == (4, [])
    assert found["bytes"] == sum(len(f"content of {name}") for name in NAMES)
    assert found["without_checksums"] == [str(folder / "checkpoints" / "2")]


def test_every_damaged_file_is_named(folder, capsys):
    (folder / "model" / "history.json").write_text("Content of model/history.json")
    (folder / "checkpoints" / "1" / integrity.RECORD).write_text("{")
    code, found = verify(capsys, folder)
    assert code == 2
    assert {entry["file"] for entry in found["damaged"]} == {
        str(folder / "model" / "history.json"),
        str(folder / "checkpoints" / "1" / integrity.RECORD),
    }
    assert "differ from their checksum" in found["damaged"][1]["problem"]
    assert main(["verify", str(folder / "model")]) == 2
    assert f"1 of 3 files damaged: {folder / 'model' / 'history.json'}" in capsys.readouterr().out


def test_what_a_killed_writer_left_behind_is_no_damage(folder, capsys):
    """An old directory that is being deleted has lost files on purpose, and no command reads it."""
    old = hidden(folder / "model", "old")
    shutil.copytree(folder / "model", old)
    (old / "history.json").unlink()
    code, found = verify(capsys, folder)
    assert (code, found["files"], found["damaged"]) == (0, 4, [])


def test_a_checkpoint_that_its_run_deletes_meanwhile_is_no_damage(folder, capsys, monkeypatch):
    sizes = integrity._sizes

    def late(place, entries):
        if place.parent.name == "checkpoints":
            shutil.rmtree(place)
        return sizes(place, entries)

    monkeypatch.setattr(integrity, "_sizes", late)
    code, found = verify(capsys, folder)
    assert (code, found["damaged"]) == (0, [])


def test_a_folder_without_records_is_not_called_intact(tmp_path, capsys):
    assert error_of(capsys, "verify", str(tmp_path)).startswith(f"{tmp_path}: nothing to compare with")
    assert error_of(capsys, "verify", str(tmp_path / "nowhere")) == f"{tmp_path / 'nowhere'}: no such folder"
