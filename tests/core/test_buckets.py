"""Paths of a bucket do what pathlib's do, and objects are written by generation."""

import pickle
import time

import pytest

from headjax.core.paths import is_bucket, path_of


@pytest.fixture
def home(bucket):
    return path_of(bucket)


def test_parts_of_a_path(home):
    path = home / "a b" / "c#1.txt"
    assert is_bucket(path)
    assert is_bucket(path.parent)
    assert str(path) == f"{home}/a b/c#1.txt"
    assert (path.name, path.suffix, path.with_name("d").name) == ("c#1.txt", ".txt", "d")
    assert path.relative_to(home).as_posix() == "a b/c#1.txt"
    assert path.absolute() == path.resolve() == path.expanduser() == pickle.loads(pickle.dumps(path)) == path


def test_objects_are_read_and_written(home):
    path = home / "a b" / "c#1.txt"
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


def test_a_bucket_that_is_not_there(bucket):
    path = path_of("gs://none-such/a")
    assert not path.exists()
    assert list(path.rglob("*")) == []
    for call in (
        lambda: path.write_bytes(b""),
        lambda: path.write_if(b"", 0),
        path.read_bytes,
        lambda: [*path.iterdir()],
    ):
        with pytest.raises(FileNotFoundError):
            call()


def test_a_service_that_cannot_be_reached_is_named_at_once(home, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    begun = time.monotonic()
    for call in (home.exists, lambda: home.write_bytes(b""), lambda: home.write_if(b"", 0), lambda: [*home.iterdir()]):
        with pytest.raises(OSError, match=r"127.0.0.1 cannot be reached \(Connection refused\)"):
            call()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://nowhere.invalid:80")
    with pytest.raises(OSError, match=r"nowhere.invalid (cannot be reached \(.+\)|does not answer within 5 s)"):
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
