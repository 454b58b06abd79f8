"""One function reads every path: folders stay `pathlib.Path`, addresses of buckets become paths with its methods."""

import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headjax.core.errors import HeadjaxError
from headjax.storage import mirror
from headjax.storage.mirror import Mirror
from headjax.storage.paths import (
    check_file,
    check_folder,
    check_writable,
    copy_file,
    file_sizes,
    is_bucket,
    path_of,
    remove_tree,
)

NO_BUCKET = "gs://none-such/a"


def test_paths_of_this_machine_are_pathlibs_and_import_no_client_of_buckets(tmp_path):
    assert path_of("a/b") == Path("a/b")
    assert not is_bucket(path_of(tmp_path))
    check_writable(tmp_path / "nowhere" / "yet")
    assert list(tmp_path.iterdir()) == []
    names = "import sys, headjax.cli; print({'gcsfs', 'etils', 'fsspec'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", names], check=True, capture_output=True, text=True)
    assert found.stdout == "set()\n"


@pytest.mark.parametrize("path", ["s3://heads/a", "https://a.b/c", "hf://a/b", "gs:///run", "gs://heads/a"])
def test_other_addresses_and_buckets_without_the_extra_are_refused(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.delitem(sys.modules, "headjax.storage.buckets", raising=False)
    with pytest.raises(HeadjaxError, match=f"^{path}: .*{'gcs' if path == 'gs://heads/a' else ''}"):
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
        *((check_folder, name) for name in ("file", "file/x", "dangling", "dangling/x", "x" * 300)),
        *((check_file, name) for name in ("link", "file/x", "x" * 300)),
    ):
        with pytest.raises(HeadjaxError, match=f"{name}: |too long"):
            check(tmp_path / name)
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    for check in (check_folder, check_file):
        with pytest.raises(HeadjaxError, match=rf"new: no permission to write to {tmp_path}$"):
            check(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_files_are_copied_and_counted(home, tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
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


def test_objects_are_read_and_written(home):
    path = home / "a b" / "c#1.txt"
    assert is_bucket(path)
    assert is_bucket(path.parent)
    assert str(path) == f"{home}/a b/c#1.txt"
    assert (path.name, path.suffix, path.with_name("d").name) == ("c#1.txt", ".txt", "d")
    assert path.relative_to(home).as_posix() == "a b/c#1.txt"
    assert path.absolute() == path.resolve() == path.expanduser() == pickle.loads(pickle.dumps(path)) == path
    assert (path.exists(), path.is_file(), path.is_dir(), path.generation) == (False, False, False, None)
    path.write_text("één\ntwo")
    assert (path.exists(), path.is_file(), path.is_dir(), path.is_symlink()) == (True, True, False, False)
    assert (path.parent.is_file(), path.parent.is_dir()) == (False, True)
    assert path.read_bytes().decode() == path.read_text() == "één\ntwo"
    with path.open("rb") as file:
        file.seek(2)
        assert file.read(3) == "é".encode() + b"n"
        assert file.readline(1) == b"\n"
        assert file.readinto(bytearray(8)) == 3
    with path.open() as text:
        assert list(text) == ["één\n", "two"]
    with path.open("w") as text:
        text.write("three")
    assert path.stat().st_size == 5
    assert path.stat().st_mtime > 1e9
    path.unlink()
    path.unlink(missing_ok=True)
    for call in (path.unlink, path.read_text, path.stat):
        with pytest.raises(FileNotFoundError) as found:
            call()
        assert found.value.filename == str(path)


def test_folders_are_the_beginnings_of_names(home):
    for name in ("a/b.txt", "a/c/d.txt", "e.json", "a.txt"):
        (home / name).write_bytes(b"1")
    assert list(home.iterdir()) == [home / "a", home / "a.txt", home / "e.json"]
    assert list(home.rglob("*.txt")) == [home / "a.txt", home / "a/b.txt", home / "a/c/d.txt"]
    assert list(home.glob("*/*.txt")) == [home / "a/b.txt"]
    (home / "a").rmtree()
    assert [path.name for path in home.rglob("*")] == ["a.txt", "e.json"]
    (home / "new").mkdir(parents=True)
    assert not (home / "new").exists()


def test_an_object_is_written_by_its_generation(home):
    path = home / "lock"
    assert path.write_if(b"1", 0) == path.generation
    assert path.write_if(b"2", 0) is None
    first = path.generation
    assert path.write_if(b"3", first) == path.generation
    assert path.write_if(b"4", first) is None
    assert path.read_bytes() == b"3"


def test_a_bucket_that_is_not_there_is_known_before_the_work(bucket):
    check_writable(f"{bucket}/run")
    assert not path_of(bucket).exists()
    with pytest.raises(HeadjaxError, match=f"^{NO_BUCKET}: "):
        check_writable(NO_BUCKET)
    path = path_of(NO_BUCKET)
    assert not path.exists()
    assert list(path.rglob("*")) == []
    for call in (lambda: path.write_bytes(b""), lambda: path.write_if(b"", 0), path.read_bytes):
        with pytest.raises(FileNotFoundError):
            call()
    with pytest.raises(FileNotFoundError):
        list(path.iterdir())


def test_a_service_that_cannot_be_reached_is_named_at_once(home, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    begun = time.monotonic()
    for call in (home.exists, lambda: home.write_bytes(b""), lambda: home.write_if(b"", 0), lambda: [*home.iterdir()]):
        with pytest.raises(OSError, match=r"127.0.0.1 cannot be reached"):
            call()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://nowhere.invalid:80")
    with pytest.raises(OSError, match=r"nowhere.invalid "):
        home.exists()
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    "answer, expected",
    [
        ("Forbidden: b/o\nno", "the bucket refuses"),
        ({"code": 401, "message": "Invalid"}, "the bucket refuses"),
        ({"code": 500, "message": "broken\nmore"}, "the service answers: broken"),
    ],
)
def test_refusals_and_other_answers_have_a_reason(home, monkeypatch, answer, expected):
    from gcsfs.retry import HttpError

    class Refusing:
        def info(self, key):
            raise OSError(answer) if isinstance(answer, str) else HttpError(answer)

    monkeypatch.setattr(type(home), "_fs", Refusing())
    with pytest.raises(OSError) as found:
        home.exists()
    assert found.value.strerror.startswith(expected)
    assert "\n" not in found.value.strerror


def append(folder, text):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(text)


def test_files_that_grow_are_written_in_place_or_copied_to_a_bucket(tmp_path, home, monkeypatch):
    own = Mirror(tmp_path)
    append(own.folder, "1\n")
    assert (tmp_path / "metrics.jsonl").read_text() == "1\n"
    assert not own.is_due
    own.close()
    assert (tmp_path / "metrics.jsonl").read_text() == "1\n"
    copies = Mirror(home)
    append(copies.folder, "1\n")
    assert not home.exists()
    copies.publish()
    generation = (home / "metrics.jsonl").generation
    copies.publish()
    assert (home / "metrics.jsonl").generation == generation
    append(copies.folder, "2\n")
    assert not copies.is_due
    monkeypatch.setattr(mirror, "EVERY", 0.0)
    assert copies.is_due
    copies.close()
    assert (home / "metrics.jsonl").read_text() == "1\n2\n"
    refused = Mirror(path_of(NO_BUCKET))
    append(refused.folder, "1\n")
    with pytest.raises(HeadjaxError, match=f"^{NO_BUCKET}/metrics.jsonl: "):
        refused.close()
    assert not copies.folder.exists()
    assert not refused.folder.exists()
