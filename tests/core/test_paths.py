"""One function reads every path: folders stay `pathlib.Path`, addresses of buckets become paths with its methods."""

import subprocess
import sys
from pathlib import Path

import pytest

from headjax.core.errors import HeadjaxError
from headjax.core.paths import check_writable, copy_file, file_sizes, is_bucket, path_of, remove_tree


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
    with pytest.raises(HeadjaxError, match=r"^gs://heads/a: buckets need gcsfs; pip install 'headjax\[gcs\]'$"):
        path_of("gs://heads/a")


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
