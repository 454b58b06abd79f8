"""Directories are replaced whole: a writer may be killed anywhere, and what is not headjax's own stays."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headjax.core.errors import CheckpointError
from headjax.storage import directories, files
from headjax.storage.directories import UNFINISHED, check_target, delete_directory, replace_directory, settle
from headjax.storage.folder import Folder, read_folder
from tests.storage.versions import LAYOUT, save, version_of, writer


def only_entry(path):
    return [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("renaming", [False, True])
def test_a_directory_is_replaced_and_nothing_else_is_left(renaming, path, monkeypatch):
    """Also where a system does not let directories change places in one step."""
    if renaming:
        monkeypatch.setattr(directories, "_renameat2", lambda: None)
    save(path, 2)
    assert version_of(path) == 2
    assert only_entry(path)
    (path.parent / "link").symlink_to(path)
    save(path.parent / "link", 3)
    assert (path.parent / "link").is_symlink()
    with pytest.raises(FileNotFoundError):  # and a failed move puts the old one back
        replace_directory(path.parent / "nowhere", path, LAYOUT)
    assert version_of(path) == 3


def test_there_is_no_moment_without_a_directory(path, monkeypatch):
    """Whatever a program looks for between two calls of the system, and whoever is killed there."""
    (path.parent / "other").mkdir()
    if not directories._exchange(path.parent / "other", path) or not directories._exchange(path.parent / "other", path):
        pytest.skip("directories do not change places in one step on this file system")
    seen = []
    with monkeypatch.context() as watched:
        for module, name in ((os, "rename"), (directories, "sync_folder"), (directories.shutil, "rmtree")):
            call = getattr(module, name)

            def looking(*arguments, call=call, name=name, **options):
                seen.append((name, path.is_dir()))
                return call(*arguments, **options)

            watched.setattr(module, name, looking)
        save(path, 2)
    assert [name for name, _ in seen][-3:] == ["sync_folder", "rename", "rmtree"]
    assert all(there for _, there in seen)
    assert version_of(path) == 2


def test_what_is_replaced_from_a_place_with_a_name_goes_whole(path, monkeypatch):
    """The old directory is never found there in parts."""
    (path.parent / "other").mkdir()
    writer(2)(path.parent / "other")
    deleted = []
    monkeypatch.setattr(directories.shutil, "rmtree", lambda folder, **options: deleted.append(folder))
    replace_directory(path.parent / "other", path, LAYOUT)
    assert version_of(path) == 2
    assert not (path.parent / "other").exists()
    assert [files.shown(str(folder)) for folder in deleted] == [str(path)]


def test_files_of_others_are_not_deleted(path, monkeypatch):
    (path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"model: "):
        save(path, 2)
    (path / "params").mkdir()
    (path / "params" / "notes.txt").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match=r"model: .*notes\.txt and 1 more"):
        replace_directory(path.parent / "other", path, LAYOUT)
    assert version_of(path) == 1
    assert only_entry(path)
    (path / "checksums.json").unlink()  # as earlier versions wrote it
    (path.parent / "file").write_text("")
    monkeypatch.chdir(path)
    for target in (path, path.parent / "file"):
        with pytest.raises(CheckpointError, match=f"{target.name}: "):
            check_target(target, LAYOUT)


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
save(Path(sys.argv[1]), 2, renaming=sys.argv[3] == "True")
"""


@pytest.mark.parametrize("renaming", [False, True])
@pytest.mark.parametrize(
    ("moments", "least"), [([2, 16, 20], 1), pytest.param(range(60), 20, marks=pytest.mark.attack)]
)
def test_a_save_that_is_killed_leaves_one_of_both(path, renaming, moments, least):
    """Before a few file operations around the renames, in a process of its own; `make attack` goes through all."""
    kills = 0
    for after in moments:
        command = [sys.executable, "-c", KILLED, str(path), str(after), str(renaming)]
        done = subprocess.run(command, check=False, capture_output=True, cwd=Path(__file__).parents[2])
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        kills += done.returncode != 0
        found = read_folder(Folder(path), lambda folder: version_of(folder.path))
        assert found in (1, 2)
        assert found == 2 or done.returncode != 0
        assert only_entry(path)
        save(path, 1)
    assert kills >= least


def test_the_two_renames_are_undone_or_finished(path, monkeypatch):
    """The state between them, and that after them, as another process left it."""
    monkeypatch.setattr(files, "_NONCE", "00000000")
    old, new = files.hidden(path, "old"), files.hidden(path, "new")
    monkeypatch.undo()
    path.rename(old)
    for place, version in ((new, 2), (old, 0)):
        place.mkdir()
        writer(version)(place)
        settle(path)
        assert version_of(path) == 1
        assert only_entry(path)


def test_a_directory_is_deleted_whole(path, tmp_path, monkeypatch):
    """One whose process is killed while it deletes is gone, and the next access deletes the rest."""
    with monkeypatch.context() as killed:
        killed.setattr(files, "_NONCE", "00000000")
        killed.setattr(directories, "remove_tree", lambda path: (path / "config.json").unlink())
        delete_directory(path)
    assert not path.exists()
    assert len(list(tmp_path.iterdir())) == 1
    settle(path)
    assert list(tmp_path.iterdir()) == []
    save(path, 1)
    delete_directory(path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_living_writer_has_begun_is_left_alone(path, tmp_path):
    ours, theirs = files.hidden(path, "new"), tmp_path / f".model.{os.getppid()}-00000000-0@{os.uname().nodename}.new"
    elsewhere, users = tmp_path / ".model.1-00000000-0@another-host.new", tmp_path / ".model.finetune"
    for folder in (ours, theirs, elsewhere, users):
        folder.mkdir()
    settle(path)
    assert all(folder.is_dir() for folder in (ours, theirs, elsewhere, users))


def test_a_directory_of_a_bucket_is_replaced(far, home, tmp_path):
    save(far, 2)
    assert read_folder(Folder(far), lambda folder: version_of(folder.path)) == 2
    assert sorted(file.name for file in far.rglob("*")) == ["checksums.json", "config.json", "history.json"]
    replace_directory(far, home / "other", LAYOUT)
    assert not far.exists()
    save(tmp_path / "new", 3)
    replace_directory(tmp_path / "new", home / "other", LAYOUT)
    assert version_of(home / "other") == 3
    assert not (tmp_path / "new").exists()


def test_a_bucket_keeps_what_is_not_headjaxs_own(far, home):
    (home / "mine" / "notes.txt").write_text("mine")
    (far / "notes.txt").write_text("mine")
    for path, said in ((home / "mine", "no history.json"), (far, r"notes\.txt")):
        with pytest.raises(CheckpointError, match=f"{path.name}: .*{said}"):
            save(path, 2)
    assert version_of(far) == 1


def test_an_upload_that_ends_early_is_no_directory_and_is_replaced(far, monkeypatch):
    copy, done = directories.copy_file, []

    def fails(file, target):
        if len(done) == 2:
            raise OSError("the machine is gone")
        done.append(target.name)
        copy(file, target)

    monkeypatch.setattr(directories, "copy_file", fails)
    with pytest.raises(OSError, match="gone"):
        save(far, 2)
    assert done[-1] != LAYOUT.marker
    assert not (far / LAYOUT.marker).exists()
    with pytest.raises(CheckpointError, match="left unfinished by a process that was killed"):
        Folder(far)
    (far / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"holds notes\.txt"):
        save(far, 3)
    (far / "notes.txt").unlink()
    monkeypatch.setattr(directories, "copy_file", copy)
    save(far, 3)
    assert read_folder(Folder(far), lambda folder: version_of(folder.path)) == 3
    assert not (far / UNFINISHED).exists()
