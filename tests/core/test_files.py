"""Files appear whole or not at all, and what is no file is written to as it stands."""

import os
import stat
import threading

import pytest

from headjax.core import files
from headjax.core.errors import HeadjaxError
from headjax.core.files import write_file


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = write_file(tmp_path / "a" / "b.txt", b"one")
    path.chmod(0o640)
    write_file(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert names(path.parent) == ["b.txt"]


def test_a_folder_in_its_place_is_an_error_and_leaves_nothing(tmp_path):
    (tmp_path / "taken" / "inner").mkdir(parents=True)
    with pytest.raises(HeadjaxError, match=r"taken: cannot be written \("):
        write_file(tmp_path / "taken", b"data")
    assert names(tmp_path) == ["taken"]


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
    with pytest.raises(HeadjaxError, match="dangling: cannot be written"):
        write_file(tmp_path / "dangling", b"lost")
    assert names(tmp_path) == ["dangling", "link", "new", "there"]


def test_devices_are_written_to_and_not_replaced():
    before = os.stat("/dev/full")
    with pytest.raises(HeadjaxError, match=r"/dev/full: cannot be written \(No space left"):
        write_file("/dev/full", b"data")
    write_file("/dev/null", b"data")
    after = os.stat("/dev/full")
    assert stat.S_ISCHR(after.st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert after.st_ino == before.st_ino


def test_pipes_are_written_to(tmp_path):
    """Also those of a process: `--json /dev/stdout`, `--json >(jq .)`."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    write_file(pipe, b"data" * 50_000)
    reader.join()
    assert found == [b"data" * 50_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    read, write = os.pipe()
    write_file(f"/dev/fd/{write}", b"data")
    assert os.read(read, 10) == b"data"
    os.close(read)
    os.close(write)


def test_an_open_file_of_this_process_is_written_on(tmp_path):
    """As stdout that goes to a file: it has what was printed before, and stays the file that is open."""
    with (tmp_path / "out").open("w") as file:
        print("before", file=file, flush=True)
        write_file(f"/dev/fd/{file.fileno()}", b"data")
        file.seek(0, os.SEEK_END)
        print("after", file=file)
    assert (tmp_path / "out").read_text() == "before\ndataafter\n"


def test_folders_are_made_below_existing_ones_alone(tmp_path, monkeypatch):
    with pytest.raises(HeadjaxError, match=r"/headjax-no-such/folder/x: cannot be written \(no folder"):
        write_file("/headjax-no-such/folder/x", b"data")
    assert not os.path.exists("/headjax-no-such")
    monkeypatch.chdir(tmp_path)
    assert write_file("new/folder/x", b"data").read_bytes() == b"data"


def test_what_a_killed_process_left_is_cleared(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_NONCE", "00000000")
    files.hidden(tmp_path / "x", "new").write_bytes(b"half")
    monkeypatch.undo()
    ours = files.hidden(tmp_path / "x", "new")
    ours.write_bytes(b"another thread's")
    write_file(tmp_path / "x", b"data")
    assert names(tmp_path) == [ours.name, "x"]


def test_processes_are_known_to_live():
    assert files.process_lives(os.getpid())
    assert files.process_lives(1)
    assert not files.process_lives(2**22 + 1)
