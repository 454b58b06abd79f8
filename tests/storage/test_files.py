"""Files appear whole or not at all, and what is no file is written to as it stands."""

import os
import stat
import threading

import pytest

import headjax
from headjax.storage.files import write_file


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = write_file(tmp_path / "a" / "b.txt", b"one")
    path.chmod(0o640)
    write_file(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert names(path.parent) == ["b.txt"]


@pytest.mark.parametrize("path", [".", "..", "/", "", "taken"])
def test_a_folder_in_its_place_is_an_error_and_leaves_nothing(path, tmp_path, monkeypatch):
    (tmp_path / "taken" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(headjax.HeadjaxError, match=f"{path}: "):
        write_file(path, b"data")
    assert names(tmp_path) == ["taken"]
    assert write_file("new/folder/x", b"data").read_bytes() == b"data"


def test_links_are_followed(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("before")
    (tmp_path / "link").symlink_to("there/file")
    (tmp_path / "new").symlink_to("there/new")
    write_file(tmp_path / "link", b"after")
    write_file(tmp_path / "new", b"made")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "file").read_text() == "after"
    assert (tmp_path / "there" / "new").read_text() == "made"
    (tmp_path / "dangling").symlink_to("nowhere/file")
    with pytest.raises(headjax.HeadjaxError, match=r"dangling: "):
        write_file(tmp_path / "dangling", b"lost")
    assert names(tmp_path) == ["dangling", "link", "new", "there"]


def test_devices_and_pipes_are_written_to_and_not_replaced(tmp_path):
    """Also pipes of a process: `--json /dev/stdout`, `--json >(jq .)`."""
    before = os.stat("/dev/null")
    with pytest.raises(headjax.HeadjaxError, match=r"/dev/full: "):
        write_file("/dev/full", b"data")
    write_file("/dev/null", b"data")
    assert os.stat("/dev/null").st_ino == before.st_ino
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    write_file(pipe, b"data" * 50_000)
    reader.join()
    assert found == [b"data" * 50_000]
    with (tmp_path / "out").open("w") as file:  # as stdout that goes to a file
        print("before", file=file, flush=True)
        write_file(f"/dev/fd/{file.fileno()}", b"data")
    assert (tmp_path / "out").read_text() == "before\ndata"


def test_what_a_killed_process_left_is_cleared(tmp_path):
    left = tmp_path / f".x.{2**22 + 1}-1@{os.uname().nodename}.new"
    left.write_bytes(b"half")
    theirs = tmp_path / f".x.{os.getppid()}-1@{os.uname().nodename}.new"
    theirs.write_bytes(b"another process's")
    write_file(tmp_path / "x", b"data")
    assert names(tmp_path) == [theirs.name, "x"]
