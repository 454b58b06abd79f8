"""Files appear whole or not at all, and what is no file is written to as it stands."""

import os
import stat
import threading

import pytest

from headjax.core.errors import CheckpointError, HeadjaxError
from headjax.storage.files import check_links, write_file


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = write_file(tmp_path / "a" / "b.txt", b"one")
    path.chmod(0o640)
    write_file(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert names(path.parent) == ["b.txt"]


@pytest.mark.parametrize("path", [".", "..", "/", "", "taken", "/headjax-no-such/folder/x"])
def test_a_folder_in_its_place_or_none_is_an_error_and_leaves_nothing(path, tmp_path, monkeypatch):
    (tmp_path / "taken" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeadjaxError, match=f"{path}: "):
        write_file(path, b"data")
    assert names(tmp_path) == ["taken"]
    assert not os.path.exists("/headjax-no-such")
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
    with pytest.raises(HeadjaxError, match=r"dangling: "):
        write_file(tmp_path / "dangling", b"lost")
    assert names(tmp_path) == ["dangling", "link", "new", "there"]


def test_devices_and_pipes_are_written_to_and_not_replaced(tmp_path):
    """Also pipes of a process: `--json /dev/stdout`, `--json >(jq .)`."""
    before = [os.stat(device) for device in ("/dev/full", "/dev/null")]
    with pytest.raises(HeadjaxError, match=r"/dev/full: "):
        write_file("/dev/full", b"data")
    write_file("/dev/null", b"data")
    for device, was in zip(("/dev/full", "/dev/null"), before, strict=True):
        assert stat.S_ISCHR(os.stat(device).st_mode)
        assert os.stat(device).st_ino == was.st_ino
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


def test_what_a_killed_process_left_is_cleared(tmp_path):
    left = tmp_path / f".x.{2**22 + 1}-1@{os.uname().nodename}.new"
    left.write_bytes(b"half")
    theirs = tmp_path / f".x.{os.getppid()}-1@{os.uname().nodename}.new"
    theirs.write_bytes(b"another process's")
    write_file(tmp_path / "x", b"data")
    assert names(tmp_path) == [theirs.name, "x"]


@pytest.fixture
def elsewhere(tmp_path):
    """A folder with a plain file and one that is linked to another folder."""
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    (tmp_path / "theirs" / "file").write_text("theirs")
    (tmp_path / "ours" / "plain").write_text("ours")
    (tmp_path / "ours" / "out").symlink_to("../theirs/file")
    return tmp_path / "ours"


@pytest.mark.parametrize("name", ["out", "folder/file", "plain/../../theirs/file", "dangling"])
def test_files_that_links_lead_out_of_a_folder_are_refused(elsewhere, name):
    (elsewhere / "folder").symlink_to("../theirs")
    (elsewhere / "dangling").symlink_to("/absent/file")
    (elsewhere / "sub").mkdir()
    (elsewhere / "sub" / "inner").symlink_to("../plain")
    (elsewhere.parent / "link").symlink_to("ours")
    check_links(elsewhere, ["plain", "sub/inner", "missing"])  # links within it, and one to it, are followed
    check_links(elsewhere.parent / "link", ["plain", "sub/inner"])
    with pytest.raises(CheckpointError, match="leads out of the folder, to "):
        check_links(elsewhere, ["plain", name])


def test_a_snapshot_of_hugging_faces_cache_may_link_to_its_own_blobs_alone(tmp_path):
    entries = [tmp_path / name for name in ("models--a", "models--b")]
    for entry in entries:
        (entry / "blobs").mkdir(parents=True)
        (entry / "blobs" / "4f1c").write_text("{}")
        (entry / "snapshots" / "main" / "sub").mkdir(parents=True)
    snapshot = entries[0] / "snapshots" / "main"
    (snapshot / "config.json").symlink_to("../../blobs/4f1c")
    (snapshot / "sub" / "config.json").symlink_to("../../../blobs/4f1c")
    (snapshot / "other").symlink_to("../../../models--b/blobs/4f1c")
    check_links(snapshot, ["config.json", "sub/config.json"])
    check_links(snapshot / "sub", ["config.json"])
    with pytest.raises(CheckpointError, match=r"other: "):
        check_links(snapshot, ["other"])
