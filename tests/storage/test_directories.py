"""Directories are replaced whole: a writer may be killed anywhere, and what is not headjax's own stays."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import headjax
from headjax.storage import directories
from headjax.storage.directories import check_own, check_target, replace_directory
from headjax.storage.files import beside
from tests.storage.versions import LAYOUT, save, version_of, writer


def only_entry(path):
    return [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_directory_is_replaced_and_nothing_else_is_left(path):
    save(path, 2)
    assert version_of(path) == 2
    assert only_entry(path)
    (path.parent / "link").symlink_to(path)
    save(path.parent / "link", 3)
    assert (path.parent / "link").is_symlink()
    assert version_of(path) == 3


def test_a_write_that_fails_leaves_the_old_directory(path):
    def fails(folder):
        writer(2)(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(headjax.HeadjaxError, match=r"no space left on device"):
        directories.write_directory(path, fails, LAYOUT)
    assert version_of(path) == 1
    assert only_entry(path)


def test_files_of_others_are_not_deleted(path):
    (path / "notes.txt").write_text("mine")
    with pytest.raises(headjax.CheckpointError, match=r"model: holds notes\.txt"):
        save(path, 2)
    with pytest.raises(headjax.CheckpointError, match=r"model: holds notes\.txt"):
        check_own(path)
    (path.parent / "mine").mkdir()
    (path.parent / "mine" / "notes.txt").write_text("mine")
    (path.parent / "file").write_text("")
    for name, said in (("mine", "no history.json"), ("file", "no folder")):
        with pytest.raises(headjax.CheckpointError, match=f"{name}: .*{said}"):
            check_target(path.parent / name, LAYOUT)
    assert version_of(path) == 1


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.storage.versions import save
calls = 0
def kill(*arguments):
    global calls
    calls += 1
    if calls > int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir")
sys.addaudithook(lambda event, _: kill() if event in EVENTS else None)
save(Path(sys.argv[1]), 2)
"""


@pytest.mark.parametrize(
    ("moments", "least"), [([2, 16, 17, 20], 1), pytest.param(range(60), 20, marks=pytest.mark.attack)]
)
def test_a_save_that_is_killed_leaves_one_of_both(path, moments, least):
    """Before a few file operations around the renames, in a process of its own; `make attack` goes through all."""
    kills = 0
    for after in moments:
        command = [sys.executable, "-c", KILLED, str(path), str(after)]
        done = subprocess.run(command, check=False, capture_output=True, cwd=Path(__file__).parents[2])
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        kills += done.returncode != 0
        if not path.exists():  # killed between the two renames
            (old,) = path.parent.glob(".model.*.old")
            old.rename(path)
        found = version_of(path)
        assert found in (1, 2)
        assert found == 2 or done.returncode != 0
        save(path, 1)  # which clears what the killed process left
        assert only_entry(path)
    assert kills >= least


def test_what_a_living_writer_has_begun_is_left_alone(path, tmp_path):
    ours, theirs = beside(path, "new"), tmp_path / f".model.{os.getppid()}-1@{os.uname().nodename}.new"
    elsewhere, users = tmp_path / ".model.1-1@another-host.new", tmp_path / ".model.finetune"
    for folder in (theirs, elsewhere, users):
        folder.mkdir()
    save(path, 2)
    assert all(folder.is_dir() for folder in (theirs, elsewhere, users))
    assert not ours.exists()


def test_a_directory_of_a_bucket_is_replaced(far, home, tmp_path):
    save(far, 2)
    assert version_of(far) == 2
    assert sorted(file.name for file in far.iterdir()) == ["checksums.json", "config.json", "history.json"]
    save(tmp_path / "new", 3)
    replace_directory(tmp_path / "new", home / "other", LAYOUT)
    assert version_of(home / "other") == 3


def test_a_bucket_keeps_what_is_not_headjaxs_own(far, home):
    (home / "mine" / "notes.txt").write_text("mine")
    (far / "notes.txt").write_text("mine")
    for path, said in ((home / "mine", "no history.json"), (far, r"notes\.txt")):
        with pytest.raises(headjax.CheckpointError, match=f"{path.name}: .*{said}"):
            save(path, 2)
    assert version_of(far) == 1


def test_an_upload_that_ends_early_lacks_its_marker_and_is_replaced(far, monkeypatch):
    copy = directories.copy_file

    def fails(file, target):
        if target.name == "config.json":
            raise OSError(5, "the machine is gone")
        copy(file, target)

    monkeypatch.setattr(directories, "copy_file", fails)
    with pytest.raises(Exception, match="gone"):
        save(far, 2)
    assert not (far / LAYOUT.marker).exists()
    monkeypatch.setattr(directories, "copy_file", copy)
    save(far, 3)
    assert version_of(far) == 3
