"""One function reads every path: folders stay `pathlib.Path`, addresses of buckets become paths with its methods."""

import subprocess
import sys
from pathlib import Path

import pytest

from headjax.core.errors import HeadjaxError
from headjax.core.paths import (
    check_file,
    check_folder,
    check_writable,
    copy_file,
    file_sizes,
    is_bucket,
    path_of,
    remove_tree,
)


def test_paths_of_this_machine_are_pathlibs(tmp_path):
    assert path_of("a/b") == Path("a/b")
    assert path_of(tmp_path) is not None
    assert not is_bucket(path_of(tmp_path))
    check_writable(tmp_path / "nowhere" / "yet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["s3://heads/a", "https://a.b/c", "hf://a/b"])
def test_other_addresses_are_refused(path):
    with pytest.raises(HeadjaxError, match=f"^{path}: not a path .* gs://BUCKET/NAME"):
        path_of(path)


def test_a_bucket_needs_a_name():
    with pytest.raises(HeadjaxError, match=r"^gs:///run: the bucket has no name"):
        path_of("gs:///run")


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.delitem(sys.modules, "headjax.core.buckets", raising=False)
    with pytest.raises(HeadjaxError, match=r"^gs://heads/a: .*gcs"):
        path_of("gs://heads/a")


def test_what_cannot_become_a_folder_or_a_file_is_known_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "link").symlink_to("empty")
    for name in ("empty", "link", "new/er", "."):
        check_folder(tmp_path / name)
    for name in ("file", "dangling", "new/er", "link/x"):
        check_file(tmp_path / name)
    check_file("/dev/null")
    for name in ("file", "file/x", "dangling/x"):
        with pytest.raises(HeadjaxError, match=r": .* exists and is no folder$"):
            check_folder(tmp_path / name)
    with pytest.raises(HeadjaxError, match=r"dangling: "):
        check_folder(tmp_path / "dangling")
    with pytest.raises(HeadjaxError, match=r"link: "):
        check_file(tmp_path / "link")
    with pytest.raises(HeadjaxError, match=r"file/x: "):
        check_file(tmp_path / "file" / "x")
    for check in (check_file, check_folder):
        with pytest.raises(HeadjaxError, match="too long"):
            check(tmp_path / ("x" * 300))
    assert not (tmp_path / "new").exists()


def test_a_folder_without_permission_is_known_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    for check in (check_folder, check_file):
        with pytest.raises(HeadjaxError, match=rf"new: no permission to write to {tmp_path}$"):
            check(tmp_path / "new")


def test_clients_of_buckets_are_imported_with_the_first_one():
    check = "import sys, headjax.cli; assert not {'gcsfs', 'etils', 'fsspec'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_a_bucket_is_tried_before_the_work(bucket):
    check_writable(f"{bucket}/run")
    assert not path_of(bucket).exists()
    with pytest.raises(HeadjaxError, match=r"^gs://none-such/run: cannot be written \(no such bucket"):
        check_writable("gs://none-such/run")


def test_files_are_copied_and_counted(bucket, tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    home = path_of(bucket)
    copy_file(tmp_path / "a", home / "x" / "a")
    copy_file(home / "x" / "a", home / "b")
    copy_file(home / "b", tmp_path / "b")
    copy_file(tmp_path / "b", tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == b"12345"
    assert file_sizes(home) == {"b": 5, "x/a": 5}
    assert file_sizes(tmp_path) == {"a": 5, "b": 5, "c": 5}
    remove_tree(home)
    remove_tree(tmp_path / "none")
    assert not home.exists()


def test_files_that_go_away_meanwhile_are_left_out(tmp_path, monkeypatch):
    """As those of a checkpoint do that a run completes or deletes."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"1")
    is_file = Path.is_file

    def looked_at(path):
        found = is_file(path)
        (tmp_path / "a").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "is_file", looked_at)
    assert file_sizes(tmp_path) == {"b": 1}
