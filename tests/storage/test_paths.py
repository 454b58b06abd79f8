"""One function reads every path: folders stay `pathlib.Path`, addresses of buckets become `etils.epath.Path`s."""

import subprocess
import sys
from pathlib import Path

import pytest

import headjax
from headjax.storage.paths import (
    absolute,
    check_file,
    check_folder,
    copy_file,
    files_below,
    is_bucket,
    matches,
    remove_tree,
    size_of,
)
from tests.buckets import path_of

NO_BUCKET = "gs://none-such/a"


def test_paths_of_this_machine_are_pathlibs_and_import_no_client_of_buckets(tmp_path):
    assert path_of("a/b") == Path("a/b")
    assert not is_bucket(path_of(tmp_path))
    names = "import sys, headjax.cli; print({'gcsfs', 'fsspec'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", names], check=True, capture_output=True, text=True)
    assert found.stdout == "set()\n"


@pytest.mark.parametrize("path", ["s3://heads/a", "https://a.b/c", "hf://a/b", "gs:///run", "gs://heads/a"])
def test_other_addresses_and_buckets_without_the_extra_are_refused(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(headjax.HeadjaxError, match=f"^{path}: .*{'gcs' if path == 'gs://heads/a' else ''}"):
        path_of(path)


def test_what_cannot_become_a_folder_or_a_file_is_known_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "link").symlink_to("empty")
    for name in ("empty", "link", "new/er", "."):
        check_folder(tmp_path / name)
    for name in ("file", "dangling", "new/er", "link/x"):
        check_file(tmp_path / name)
    check_file("/dev/null")
    for check, name in (
        *((check_folder, name) for name in ("file", "file/x", "dangling", "dangling/x")),
        *((check_file, name) for name in ("link", "file/x")),
    ):
        with pytest.raises(headjax.HeadjaxError, match=f"{name}: "):
            check(tmp_path / name)
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    for check in (check_folder, check_file):
        with pytest.raises(headjax.HeadjaxError, match=rf"new: no permission to write to {tmp_path}$"):
            check(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_files_are_copied_listed_and_removed(home, tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    copy_file(tmp_path / "a", home / "x" / "a")
    copy_file(home / "x" / "a", home / "b")
    copy_file(home / "b", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"12345"
    assert files_below(home) == ["b", "x/a"]
    assert files_below(tmp_path) == ["a", "b"]
    remove_tree(home)
    remove_tree(tmp_path / "none")
    assert not home.exists()


def test_a_bucket_that_is_not_there_is_known_before_the_work(bucket):
    check_folder(f"{bucket}/run")
    assert is_bucket(path_of(bucket))
    assert not path_of(f"{bucket}/run").exists()
    for check in (check_folder, check_file):
        with pytest.raises(headjax.HeadjaxError, match=f"^{NO_BUCKET}: cannot be written"):
            check(NO_BUCKET)


def test_paths_of_a_bucket_stay_in_it(bucket):
    """What etils has under another name than pathlib, or not at all."""
    home = path_of(bucket)
    (home / "deep" / "deeper" / "a.txt").write_text("four")
    assert str(absolute(home)) == bucket
    assert size_of(home / "deep" / "deeper" / "a.txt") == 4
    assert [str(file) for file in matches(home / "**" / "*.txt")] == [f"{bucket}/deep/deeper/a.txt"]
    assert files_below(home) == ["deep/deeper/a.txt"]
    assert files_below(home / "none") == []
