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
    assert data["parameters"] == load(tmp_path / "out").num_parameters == load(tmp_path / "model").num_parameters


def test_the_files_that_hold_no_tokenizer_are_named(exported, tmp_path, capsys):
    """llama2.c's `tok512.bin` is none of them."""
    (exported / "tok512.bin").write_bytes(b"0")
    assert main(["import", str(exported), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "tokenizer.json" in said
    assert "vocab.txt" in said
    (exported / "tokenizer.json").mkdir()
    assert main(["import", str(exported), str(tmp_path / "next")]) == 2
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


@pytest.fixture
def verify(folder, capsys):
    """Verifies the workdir; returns the exit code and the JSON."""

    def verify():
        code = main(["verify", str(folder), "--json", "-"])
        return code, json.loads(capsys.readouterr().out)

    return verify


def test_an_intact_folder(folder, verify):
    code, found = verify()
    assert (code, found["files"], found["damaged"]) == (0, 4, [])
    assert found["bytes"] == sum(len(f"content of {name}") for name in NAMES)
    assert found["without_checksums"] == [str(folder / "checkpoints" / "2")]


def test_every_damaged_file_is_named(folder, verify, capsys):
    history, record = folder / "model" / "history.json", folder / "checkpoints" / "1" / integrity.RECORD
    history.write_text("Content of model/history.json")
    record.write_text("{")
    code, found = verify()
    assert code == 2
    assert {entry["file"] for entry in found["damaged"]} == {str(history), str(record)}
    assert "differ from their checksum" in found["damaged"][1]["problem"]
    assert main(["verify", str(folder / "model")]) == 2
    assert f"1 of 3 files damaged: {history}" in capsys.readouterr().out


def test_what_a_killed_writer_left_behind_is_no_damage(folder, verify):
    """An old directory that is being deleted has lost files on purpose, and no command reads it."""
    old = hidden(folder / "model", "old")
    shutil.copytree(folder / "model", old)
    (old / "history.json").unlink()
    code, found = verify()
    assert (code, found["files"], found["damaged"]) == (0, 4, [])


def test_a_checkpoint_that_its_run_deletes_meanwhile_is_no_damage(verify, monkeypatch):
    sizes = integrity._sizes

    def late(place, entries):
        if place.parent.name == "checkpoints":
            shutil.rmtree(place)
        return sizes(place, entries)

    monkeypatch.setattr(integrity, "_sizes", late)
    code, found = verify()
    assert (code, found["damaged"]) == (0, [])


def test_a_folder_without_records_is_not_called_intact(tmp_path, capsys):
    assert error_of(capsys, "verify", str(tmp_path)).startswith(f"{tmp_path}: ")
    assert error_of(capsys, "verify", str(tmp_path / "nowhere")).startswith(f"{tmp_path / 'nowhere'}: ")
