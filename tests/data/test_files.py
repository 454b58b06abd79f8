from __future__ import annotations

import gzip
import re

import pytest

from headjax.core.errors import DataError
from headjax.core.files import read_text
from headjax.core.paths import path_of
from headjax.data.documents import Document, text_files
from headjax.data.files import count_lines, find_files, read_lines


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "b.txt").write_text("bee", encoding="utf-8")
    (tmp_path / "a.MD").write_text("é", encoding="utf-8")
    (tmp_path / "deep" / "er" / "c.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    (tmp_path / "code.py").write_text("not text")
    (tmp_path / ".hidden" / "d.txt").write_text("hidden")
    return tmp_path


def test_a_folder_is_searched(folder):
    expected = [("a.MD", "é"), ("b.txt", "bee"), ("deep/er/c.txt", "one\ntwo\n")]
    assert text_files(folder) == [Document(str(folder / name), text) for name, text in expected]


def test_files_of_any_name_and_patterns_none_twice(folder):
    assert [document.text for document in text_files(folder / "code.py")] == ["not text"]
    found = text_files([f"{folder}/*.txt", folder / "b.txt", f"{folder}/**/c.*"])
    assert [document.text for document in found] == ["bee", "one\ntwo\n"]


def test_lines_are_those_of_the_whole_text(tmp_path):
    file = tmp_path / "a.txt"
    for data in (b"\n\xef\xbb\xbfone\r\n\n two\rx", b"\xef\xbb\xbfone\n\n", b"one"):
        packed = tmp_path / "a.txt.gz"
        file.write_bytes(data)
        packed.write_bytes(gzip.compress(data))
        for one in (file, packed):
            lines = list(read_lines(one))
            assert "".join(lines) == read_text(one)
            assert count_lines(one) == len(lines)


def test_lines_are_read_when_asked_for(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"first\n" * 3 + b"\xff\n")
    lines = read_lines(file)
    assert [next(lines) for _ in range(3)] == ["first\n"] * 3
    with pytest.raises(DataError, match=r"a.txt: line 4, byte offset 18: not UTF-8 \(invalid start byte\)$"):
        next(lines)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "empty, there is no text in it"),
        (b" \n\t\r\n", "empty, there is no text in it"),
        (b"\xef\xbb\xbf", "empty, there is no text in it"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "binary, not text: zero byte at offset 8"),
        ("utf-16".encode("utf-16-le"), "binary, not text: zero byte at offset 1"),
        (b"first\nsecond \xe9t\xe9\n", "line 2, byte offset 13: not UTF-8 (invalid continuation byte)"),
        (b"cut \xe2\x82", "line 1, byte offset 4: not UTF-8 (unexpected end of data)"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    file = tmp_path / "bad.txt"
    file.write_bytes(content)
    for path in (file, tmp_path, tmp_path / "*.txt"):
        with pytest.raises(DataError) as caught:
            text_files(path)
        assert str(caught.value) == f"{file}: {message}"
    with pytest.raises(DataError) as caught:
        list(read_lines(file))
    assert str(caught.value).startswith(f"{file}: ")
    assert content.startswith(b"\x89") or str(caught.value) == f"{file}: {message}"


def test_paths_without_text_are_named(tmp_path):
    cases = {
        tmp_path / "missing.txt": "no such file or folder",
        tmp_path / "*.txt": "no file matches this pattern",
        tmp_path: "no *.md or *.txt file in this folder",
    }
    for path, message in cases.items():
        with pytest.raises(DataError, match=f"^{re.escape(f'{path}: {message}')}$"):
            text_files(path)
    with pytest.raises(DataError, match=r"^path: no text files given$"):
        text_files([])


def test_unreadable_file_is_named(tmp_path, monkeypatch):
    file = tmp_path / "secret.txt"
    file.write_text("text")

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(file), "read_bytes", refuse)
    with pytest.raises(DataError, match=rf"^{re.escape(str(file))}: cannot be read: Permission denied$"):
        text_files(file)


def test_texts_of_a_bucket_are_found_and_read(bucket):
    home = path_of(bucket)
    (home / "deep" / "a.txt").write_text("one\r\ntwo\n")
    (home / "b.md").write_text("bee")
    (home / ".hidden" / "c.txt").write_text("hidden")
    (home / "d.txt.gz").write_bytes(gzip.compress(b"three\nfour"))
    assert [file.relative_to(home).as_posix() for file in find_files(bucket)] == ["b.md", "deep/a.txt"]
    assert find_files(f"{bucket}/*/a.txt") == [home / "deep" / "a.txt"]
    assert list(read_lines(home / "deep" / "a.txt")) == ["one\n", "two\n"]
    assert list(read_lines(home / "d.txt.gz")) == ["three\n", "four"]
    assert read_text(home / "d.txt.gz") == "three\nfour"
    assert count_lines(home / "d.txt.gz") == 2
    with pytest.raises(DataError, match=rf"^{bucket}/none.txt: no such file or folder"):
        find_files(f"{bucket}/none.txt")
