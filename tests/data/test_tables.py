from __future__ import annotations

import csv
import gzip
import json
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headjax.core.errors import DataError
from headjax.data.tables import header, table_rows


def read(path, columns):
    """All rows of a table, whose fields have the columns' names."""
    return list(table_rows(path, {column: column for column in columns}))


def cells_of(path, columns):
    return [tuple(row.values[column] for column in columns) for row in read(path, columns)]


def lines(path, *rows):
    path.write_bytes("".join(f"{row}\n" for row in rows).encode())
    return path


def test_columns_by_name_and_number(tmp_path):
    named = lines(tmp_path / "a.tsv", "id\ttext\tlabel", '0\tthe "film\tbad', "1\tfun\tgood")
    assert cells_of(named, ["label", "text"]) == [("bad", 'the "film'), ("good", "fun")]
    assert read(named, ["text"])[1].place == f"{named}: line 3"
    assert header(named) == ("id", "text", "label")
    numbered = lines(tmp_path / "b.csv", '"one, two",1\r', '"a ""quote""",0\r')
    assert cells_of(numbered, ["1", "0"]) == [("1", "one, two"), ("0", 'a "quote"')]


def test_places_count_lines_inside_quotes(tmp_path):
    path = lines(tmp_path / "a.csv", "text,label", '"two\nlines",1', "one,0")
    assert [row.place.rpartition(" ")[2] for row in read(path, ["text"])] == ["2", "4"]
    assert cells_of(path, ["text"])[0] == ("two\nlines",)


def test_json_and_gzip(tmp_path):
    rows = [{"text": "a\tb", "label": 1}, {"text": "ü", "label": 0.5}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress("\n\n".join(map(json.dumps, rows)).encode()))
    for name in ("a.json", "b.jsonl.gz"):
        assert cells_of(tmp_path / name, ["text", "label"]) == [("a\tb", "1"), ("ü", "0.5")]
        assert header(tmp_path / name) == ("text", "label")
    assert read(tmp_path / "b.jsonl.gz", ["text"])[1].place.endswith("b.jsonl.gz: line 3")


def test_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table
    path = tmp_path / "a.parquet"
    parquet.write_table(table({"id": [3, 4], "text": ["a\tb", "ü"], "label": [1, 0.5]}), path)
    assert header(path) == ("id", "text", "label")
    assert cells_of(path, ["text", "label", "id"]) == [("a\tb", "1.0", "3"), ("ü", "0.5", "4")]
    assert read(path, ["text"])[1].place == f"{path}: row 1"
    with pytest.raises(DataError, match=r"a.parquet: unknown column 'txt'; did you mean 'text'\?$"):
        read(path, ["txt"])
    parquet.write_table(table({"text": [b"bytes"]}), path)
    with pytest.raises(DataError, match=r"a.parquet: row 0: text: neither text nor a number, but bytes$"):
        read(path, ["text"])
    parquet.write_table(table({"text": ["a"]})[:0], path)
    with pytest.raises(DataError, match=r"a.parquet: no rows$"):
        read(path, ["text"])


def test_parquet_without_its_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"a.parquet: .*pyarrow: pip install '\.\[data\]' from a checkout$"):
        header(tmp_path / "a.parquet")


cells = st.text(st.characters(blacklist_characters="\0\r\ufeff", blacklist_categories=["Cs"]), min_size=1)
tables = st.lists(st.tuples(cells, cells), min_size=1, max_size=5)


def is_ambiguous(rows):
    """Whether a cell that its writer did not quote looks as if one had."""
    return any(cell[0] == cell[-1] == '"' or set(cell) & set("\t\n") for row in rows for cell in row)


@given(tables)
def test_any_tsv_cell_survives(tmp_path_factory, rows):
    assume(not is_ambiguous(rows))
    path = lines(tmp_path_factory.mktemp("tsv") / "a.tsv", "first\tsecond", *("\t".join(row) for row in rows))
    assert cells_of(path, ["first", "second"]) == rows


@given(tables, st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]))
def test_any_cell_of_a_tsv_writer_survives(tmp_path_factory, rows, quoting):
    path = tmp_path_factory.mktemp("tsv") / "a.tsv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n", quoting=quoting).writerows([("first", "second"), *rows])
    assert cells_of(path, ["first", "second"]) == rows
    assert header(path) == ("first", "second")


def test_marks_of_raw_text_are_kept(tmp_path):
    """As in MRPC's own file, whose sentences may be quotations as a whole."""
    rows = ['"All of it."\t1', 'He said "no".\t0', '"One" and "two"\t1']
    assert cells_of(lines(tmp_path / "a.tsv", "text\tlabel", *rows), ["text"]) == [
        ('"All of it."',), ('He said "no".',), ('"One" and "two"',)
    ]  # fmt: skip


@pytest.mark.parametrize("rows", [('He said "no".\t0', '"a ""b"""\t1'), ('"a ""b"""\t1', 'He said "no".\t0')])
def test_two_ways_of_writing_cells_in_a_file_are_refused(tmp_path, rows):
    path = lines(tmp_path / "a.tsv", "text\tlabel", *rows)
    with pytest.raises(DataError, match=rf"^{path}: line 3: "):
        read(path, ["text"])


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize("value", ["null", "1e400", "-Infinity", "NaN"])
def test_no_value_is_no_text(tmp_path, name, value):
    row = f'{{"text": {value}, "label": 1}}'
    (tmp_path / name).write_text(f"[{row}]" if name == "a.json" else row)
    with pytest.raises(DataError, match=r"(entry 0|line 1): text: "):
        read(tmp_path / name, ["text"])


def test_times_of_parquet_are_no_text(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"text": arrow.array([1], arrow.timestamp("ns")), "label": [None]})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "a.parquet")
    for column in ("text", "label"):
        with pytest.raises(DataError, match=rf"a.parquet: row 0: {column}: "):
            read(tmp_path / "a.parquet", [column])


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.tsv", b"text\tlabel\na\t1\nb\n", "line 3: 1 columns where the first line has 2"),
        ("a.tsv", b"text\tlabel\na\t1\tx\n", "line 2: 3 columns where the first line has 2"),
        ("a.tsv", b"text\tlabels\na\t1\n", "unknown column 'label'; did you mean 'labels'?"),
        ("a.tsv", b"text\tlabel\n", "no rows"),
        ("a.tsv", b"text\tlabel\na\t1\n\xff\t1\n", "line 3, byte offset 15: not UTF-8 (invalid start byte)"),
        ("a.tsv", b"  \n", "empty, there is no text in it"),
        ("a.csv", b'text,label\n"a,1\n', "line 2: unexpected end of data"),
        ("a.json", b'[{"text": "a"},\n {"text": }]', "line 2: not JSON (Expecting value)"),
        ("a.json", b'{"text": "a"}', "expected an array of objects"),
        (
            "a.json",
            b'{"version": "1.1", "data": []}',
            "expected an array of objects; a task of questions in SQuAD's format is squad:",
        ),
        ("a.json", b'[{"text": "a", "label": 1}, 3]', "entry 1: expected an object, got int"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n{"text": "b"}\n', "line 2: unknown key 'label'; known: text"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n{"text"\n', "line 2: not JSON (Expecting ':' delimiter)"),
        ("a.json", b"[]", "no rows"),
        ("a.json", b'[{"text": %s, "label": 1}]' % (b"9" * 5000), "not JSON (Exceeds the limit (4300 digits)"),
        ("a.jsonl", b'{"text": %s}\n' % (b"9" * 5000), "line 1: not JSON (Exceeds the limit (4300 digits)"),
        ("a.json", b"[" * 100_000, "nested too deep"),
        ("a.json", rb'[{"text": "\ud800", "label": 1}]', "entry 0: text: character 0 is half of a pair (U+D800)"),
        ("a.jsonl", rb'{"text": "", "label": "a\udfff"}', "line 1: label: character 1 is half of a pair (U+DFFF)"),
        ("a.tsv.gz", b"text", "not a whole gzip file"),
        # Without a fixed time in it, processes that collect a second apart would collect different tests.
        ("a.tsv.gz", gzip.compress(b"text\tlabel\n" * 50, mtime=0)[:-12], "not a whole gzip file"),
        ("a.xlsx", b"text", "a table's name ends in one of .csv, .tsv, .txt, .json, .jsonl, .parquet, also with .gz"),
        ("a.parquet", b"PAR1", "not a Parquet file that can be read ("),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read(path, ["text", "label"])
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_the_header_of_a_table_without_rows(tmp_path):
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(DataError, match=r"a.json: no rows$"):
        header(tmp_path / "a.json")


def test_missing_columns_by_number(tmp_path):
    path = lines(tmp_path / "a.tsv", "a\tb")
    with pytest.raises(DataError, match=r"line 1: no column 2, there are 2, counted from 0$"):
        read(path, ["0", "2"])
    with pytest.raises(DataError, match=r"missing.tsv: no such file$"):
        read(tmp_path / "missing.tsv", ["0"])
