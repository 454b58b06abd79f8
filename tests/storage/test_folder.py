"""Folders that are read are opened once: each document read once, and never parts of two versions."""

import collections
import sys
import threading
import time

import pytest

from headjax.cli import main
from headjax.storage import folder as storage
from headjax.storage import integrity
from headjax.storage.folder import Folder, read_folder
from tests.commands.language_folder import write_language_folder
from tests.storage.versions import save, version_of, writer


@pytest.mark.parametrize(("place", "replacements"), [("path", 1), ("path", 2), ("path", 3), ("far", 1)])
def test_a_reader_never_sees_two_versions(place, replacements, request):
    """The directory is replaced between its files, also so often that its number on disk is that of before."""
    path = request.getfixturevalue(place)
    pending = [2, 3, 4][:replacements]

    def read(_):
        first = (path / "config.json").read_text()
        while pending:
            save(path, pending.pop(0))
        return first, (path / "history.json").read_text()

    first, second = read_folder(Folder(path), read)
    assert first == second
    assert version_of(path) == 1 + replacements


def test_an_error_in_between_is_that_of_a_replacement(path):
    """As of a file that only the old directory had."""
    (path / "extra").mkdir()
    writer(1)(path / "extra")
    integrity.write_record(path)

    def read(_):
        before = sorted(entry.name for entry in path.iterdir())
        if "extra" in before:
            save(path, 2)
        return [version_of(path / name) if name == "extra" else name for name in before]

    assert read_folder(Folder(path), read) == ["checksums.json", "config.json", "history.json"]


@pytest.mark.attack
def test_readers_and_a_writer_for_long(path):
    """A thread replaces the directory every few milliseconds while it is read."""
    stop = threading.Event()

    def replace():
        for version in range(2, 300):
            save(path, version)
            time.sleep(0.02)
        stop.set()

    thread = threading.Thread(target=replace)
    thread.start()
    found = []
    while not stop.is_set():
        found.append(read_folder(Folder(path), lambda folder: version_of(folder.path)))
    thread.join()
    assert found == sorted(found)
    assert version_of(path) == 299


def test_reading_again_is_not_endless_and_an_error_is_the_readers_own(path, monkeypatch):
    with pytest.raises(KeyError, match="missing"):
        read_folder(Folder(path), lambda _: {}["missing"])
    count = iter(range(100))
    monkeypatch.setattr(storage, "_identity", lambda path: next(count))
    assert read_folder(Folder(path), lambda _: 5) == 5
    assert next(count) < 10


def test_a_reader_between_the_two_renames_reads_again(path, monkeypatch):
    """The directory is away when the reader looks and while it reads."""
    seen = iter([None, (1, 1, 1), (1, 1, 1)])
    monkeypatch.setattr(storage, "_identity", lambda path: next(seen))
    answers = iter([(path / "nothing").read_text, lambda: 7])
    assert read_folder(Folder(path), lambda _: next(answers)()) == 7


DOCUMENTS = (
    *("checksums.json", "config.json", "history.json"),
    *("tokenizer/tokenizer.json", "tokenizer/special_tokens_map.json"),
)

CONFIG = """
from ml_collections import ConfigDict


def get_config(arg=""):
    return ConfigDict({
        "model": {"kind": "directory", "path": "model"},
        "data": {"kind": "language", "path": "text.txt", "length": 16, "tokenizer": "bytes"},
        "batch_size": 8, "steps": 1, "tensorboard": False,
        "optimizer": {"kind": "adamw", "schedule": {"kind": "constant_rate", "peak": 0.001}},
    })
"""

OPENED, WATCHED = collections.Counter(), []
sys.addaudithook(lambda event, found: event == "open" and WATCHED and OPENED.update([str(found[0])]))


@pytest.mark.parametrize(
    ("words", "documents"),
    [
        ("inspect model", ["checksums.json", "config.json"]),
        ("prune model out --remove 1 --by random", None),
        ("convert model out --to grouped:kv_heads=1", None),
        ("export model out", None),
        pytest.param("prune model out --remove 1 --task text.txt --limit 8", None, marks=pytest.mark.whole),
        pytest.param("train --config directory.py --workdir out", None, marks=pytest.mark.whole),
    ],
)
def test_a_command_reads_each_document_of_a_model_directory_once(words, documents, tmp_path, monkeypatch):
    write_language_folder(tmp_path, max_length=32)
    (tmp_path / "directory.py").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    WATCHED.append(True)
    OPENED.clear()
    try:
        assert main(words.split()) == 0
    finally:
        WATCHED.clear()
    folder = tmp_path / "model"
    read = {name: OPENED[str(folder / name)] + OPENED[f"model/{name}"] for name in DOCUMENTS}
    assert read == {name: int(documents is None or name in documents) for name in DOCUMENTS}
