"""Files and the rows of them: found, read line by line, told by their place."""

import gzip
import re

import pyarrow
import pytest
from pyarrow import parquet

import headjax
from headjax.data.files import find_files, whole_text
from headjax.data.tables import table_rows
from headjax.storage.files import read_lines, read_text
from tests.buckets import path_of


def read_all(path):
    """The texts of a path's files by their names."""
    return {row.place: row.values["text"] for file in find_files(path) for row in whole_text(file)}


def test_files_are_found_in_a_folder_by_name_and_by_pattern(tmp_path):
    for name, data in (
        ("b.txt", b"bee"),
        ("a.MD", "é".encode()),
        ("deep/er/c.txt", b"\xef\xbb\xbfone\r\ntwo\n"),
        ("code.py", b"not text"),
        (".hidden/d.txt", b"hidden"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    expected = [("a.MD", "é"), ("b.txt", "bee"), ("deep/er/c.txt", "one\ntwo\n")]
    assert read_all(tmp_path) == {str(tmp_path / name): text for name, text in expected}
    assert [*read_all(tmp_path / "code.py").values()] == ["not text"]
    odd = tmp_path / "set [1] *?" / "d[2].txt"
    odd.parent.mkdir()
    odd.write_text("odd")
    for path in (odd, odd.parent, odd.parent / "*.txt", odd.parent / "d[[]2].t*", tmp_path / "set*" / "d*"):
        assert [*read_all(path).values()] == ["odd"]


@pytest.mark.parametrize(
    "content, place",
    [
        (b"", "empty"),
        (b" \n\t\r\n", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "line 1: not UTF-8"),
        ("utf-16".encode("utf-16-le"), "line 1: binary"),
        (b"first\nsecond \xe9t\xe9\n", "line 2: not UTF-8"),
        (b"cut \xe2\x82", "line 1: not UTF-8"),
    ],
)
def test_bad_files_are_named(tmp_path, content, place):
    file = tmp_path / "bad.txt"
    file.write_bytes(content)
    for path in (file, tmp_path, tmp_path / "*.txt"):
        with pytest.raises(headjax.DataError, match=f"^{file}: {place}"):
            read_all(path)
    with pytest.raises(headjax.DataError, match=f"^{file}: {place}"):
        list(read_lines(file))


def test_paths_without_text_are_named(tmp_path):
    for path in (tmp_path / "missing.txt", tmp_path / "*.txt", tmp_path):
        with pytest.raises(headjax.DataError, match=f"^{re.escape(str(path))}: "):
            read_all(path)


def test_files_of_a_bucket_are_found_and_read(bucket, tmp_path):
    home = path_of(bucket)
    (home / "deep" / "a.txt").write_text("one\r\ntwo\n")
    (home / "b.md").write_text("bee")
    (home / ".hidden" / "c.txt").write_text("hidden")
    (home / "d.txt.gz").write_bytes(gzip.compress(b"three\nfour"))
    assert [file.relative_to(home).as_posix() for file in find_files(bucket)] == ["b.md", "d.txt.gz", "deep/a.txt"]
    assert find_files(f"{bucket}/*/a.txt") == [home / "deep" / "a.txt"]
    assert list(read_lines(home / "deep" / "a.txt")) == ["one\n", "two\n"]
    assert list(read_lines(home / "d.txt.gz")) == ["three\n", "four"]
    assert read_text(home / "d.txt.gz") == "three\nfour"
    (home / "t.csv").write_text("text;label\na film;1\n")
    parquet.write_table(pyarrow.table({"text": ["a film"], "label": [1]}), tmp_path / "t.parquet")
    (home / "t.parquet").write_bytes((tmp_path / "t.parquet").read_bytes())
    for name in ("t.csv", "t.parquet"):
        (row,) = table_rows(f"{bucket}/{name}", {"text": "text", "label": "label"})
        assert row.values == {"text": "a film", "label": "1"}
    with pytest.raises(headjax.DataError, match=rf"^{bucket}/none.txt: "):
        find_files(f"{bucket}/none.txt")
