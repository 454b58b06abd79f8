"""Tables of every format, and those that a task finds in local files."""

import csv
import gzip
import json

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

import headjax
from headjax.data.spec import split_files
from headjax.data.tables import header, table_rows
from tests.data.vocabulary import task_rows, write_lines


def read(path, columns):
    """All rows of a table, whose fields have the columns' names."""
    return list(table_rows(path, {column: column for column in columns}))


def cells_of(path, columns):
    return [tuple(row.values[column] for column in columns) for row in read(path, columns)]


def lines(path, *rows):
    """A file of these rows, whose line ends are not translated."""
    path.write_bytes("".join(f"{row}\n" for row in rows).encode())
    return path


def test_columns_by_name_and_number(tmp_path):
    named = lines(tmp_path / "a.tsv", "id\ttext\tlabel", '0\tthe "film\tbad', "1\tfun\tgood")
    assert cells_of(named, ["label", "text"]) == [("bad", 'the "film'), ("good", "fun")]
    assert read(named, ["text"])[1].place == f"{named}: row 3"
    assert header(named) == ("id", "text", "label")
    numbered = lines(tmp_path / "b.csv", '"one, two",1\r', '"a ""quote""",0\r')
    assert cells_of(numbered, ["1", "0"]) == [("1", "one, two"), ("0", 'a "quote"')]
    with pytest.raises(headjax.DataError, match=r"unknown column .2.; known: 0, 1"):
        read(lines(tmp_path / "a.tsv", "a\tb"), ["0", "2"])


def test_quotation_marks_quote_cells_of_csv(tmp_path):
    path = lines(tmp_path / "a.csv", "text,label", '"two\r\nlines",1', "", "one,0")
    assert [row.place.rpartition(" ")[2] for row in read(path, ["text"])] == ["2", "4"]
    assert cells_of(path, ["text"])[0] == ("two\nlines",)


@pytest.mark.parametrize("name", ["a.tsv", "a.txt", "a.tsv.gz"])
def test_tsv_of_pandas_and_r_has_quoted_cells(tmp_path, name):
    texts = ["All of it.", 'He said "no".', '"no" he said', "two\nlines\tand a tab", "plain"]
    for number, quoting in enumerate((csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC, csv.QUOTE_ALL)):
        path = tmp_path / f"{number}{name}"
        with (gzip.open if name.endswith(".gz") else open)(path, "wt", newline="", encoding="utf-8") as file:
            rows = [("text", "label"), *((text, 1) for text in texts)]
            csv.writer(file, "excel-tab", quoting=quoting).writerows(rows)
        with pytest.warns(UserWarning, match=rf"^{path}: quotation marks enclose cells[^\n]*$") as told:
            assert [text for (text,) in cells_of(path, ["text"])] == texts
        assert header(path) == ("text", "label")
        assert len(told) == 1  # though the file is read more than once


def test_tsv_of_r_may_have_backslashes_before_quotation_marks(tmp_path):
    path = lines(tmp_path / "a.tsv", '"text"\t"label"', r'"He said \"no\"."' + "\t1", r'"C:\new"' + "\t0")
    with pytest.warns(UserWarning, match="quotation marks enclose cells"):
        assert [text for (text,) in cells_of(path, ["text"])] == ['He said "no".', r"C:\new"]


@pytest.mark.parametrize("broken", ['"One" and "two"', '"left open', '"'])
def test_quotation_marks_of_raw_tsv_are_text(tmp_path, broken):
    # As in MRPC's own file, whose sentences may be quotations as a whole.
    texts = ['"All of it."', 'He said "no".', broken]
    path = lines(tmp_path / "a.tsv", "text\tlabel", *(f"{text}\t1" for text in texts))
    with pytest.warns(UserWarning, match=rf"^{path}: quotation marks are text[^\n]*$"):
        assert [text for (text,) in cells_of(path, ["text"])] == texts


def test_tsv_without_a_cell_that_begins_with_a_quotation_mark_says_nothing(tmp_path):
    path = lines(tmp_path / "a.tsv", "text\tlabel", 'the "film"\t1')
    assert cells_of(path, ["text"]) == [('the "film"',)]


def test_json_and_gzip(tmp_path):
    rows = [{"text": "a\tb", "label": 1}, {"text": "ü", "label": 0.5}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress("\n\n".join(map(json.dumps, rows)).encode()))
    for name in ("a.json", "b.jsonl.gz"):
        assert cells_of(tmp_path / name, ["text", "label"]) == [("a\tb", "1"), ("ü", "0.5")]
        assert header(tmp_path / name) == ("text", "label")
    assert read(tmp_path / "b.jsonl.gz", ["text"])[1].place.endswith("b.jsonl.gz: row 3")


def test_parquet(tmp_path):
    table = pyarrow.table
    path = tmp_path / "a.parquet"
    parquet.write_table(table({"id": [3, 4], "text": ["a\tb", "ü"], "label": [1, 0.5]}), path)
    assert header(path) == ("id", "text", "label")
    assert cells_of(path, ["text", "label", "id"]) == [("a\tb", "1.0", "3"), ("ü", "0.5", "4")]
    assert read(path, ["text"])[1].place == f"{path}: row 2"
    with pytest.raises(headjax.DataError, match=r"a.parquet: unknown column 'txt'"):
        read(path, ["txt"])
    times = {"text": pyarrow.array([1], pyarrow.timestamp("ns")), "label": [None]}
    for columns, named in (({"text": [b"bytes"]}, "text"), (times, "text")):
        parquet.write_table(table(columns), path)
        with pytest.raises(headjax.DataError, match=f"a.parquet: row 1: {named}: "):
            read(path, [named])
    parquet.write_table(table({"text": ["a"]})[:0], path)
    with pytest.raises(headjax.DataError, match=r"a.parquet: no rows"):
        read(path, ["text"])


cells = st.text(st.characters(blacklist_characters="\0\r\ufeff", blacklist_categories=["Cs"]), min_size=1)
cell_pairs = st.lists(st.tuples(cells, cells), min_size=1, max_size=5)


@given(cell_pairs, st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]), st.sampled_from(",;\t"))
def test_any_cell_of_a_csv_writer_survives(tmp_path_factory, rows, quoting, delimiter):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=quoting).writerows(
            [("first", "second"), *rows]
        )
    assert cells_of(path, ["first", "second"]) == rows
    assert header(path) == ("first", "second")


@pytest.mark.parametrize(
    "name, content, place",
    [
        ("a.tsv", b"text\tlabel\na\t1\nb\n", "row 3: "),
        ("a.tsv", b"text\tlabel\na\t1\tx\n", "row 2: "),
        ("a.tsv", b"text\tlabels\na\t1\n", "unknown column 'label'"),
        ("a.tsv", b"text\tlabel\tlabel\na\t1\t0\n", "2 columns are named 'label'"),
        ("a.tsv", b"text\tlabel\n", "no rows"),
        ("a.tsv", b"text\tlabel\na\t1\n\xff\t1\n", "line 3: not UTF-8"),
        ("a.tsv", b"  \n", "empty"),
        *(
            (name, b'%s{"text": %s, "label": 1}%s' % (start, value, end), f"{place}: text: ")
            for name, start, end, place in (("a.json", b"[", b"]", "row 1"), ("a.jsonl", b"", b"", "row 1"))
            for value in (b"null", b"1e400", b"-Infinity", b"NaN", b'["a", "b"]', b'{"a": "b"}')
        ),
        ("a.csv", b'text,label\n"a,1\n', "row 2: "),
        ("a.csv", b'""\n\n""\n', "no rows"),
        ("a.json", b'[{"text": "a"},\n {"text": }]', "line 2: not JSON"),
        ("a.json", b'{"text": "a"}', ""),
        ("a.json", b'[{"text": "a", "label": 1}, 3]', "row 2: "),
        ("a.jsonl", b'{"text": "a", "label": 1}\n{"text": "b"}\n', "row 2: unknown key 'label'"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n{"text"\n', "row 2: not JSON"),
        ("a.json", b"[]", "no rows"),
        ("a.jsonl", b'{"text": %s}\n' % (b"9" * 5000), "row 1: not JSON"),
        ("a.json", b"[" * 100_000, "nested too deep"),
        ("a.jsonl", rb'{"text": "", "label": "a\udfff"}', "row 1: label: character 1 "),
        ("a.tsv.gz", b"text", ""),
        # Without a fixed time in it, processes that collect a second apart would collect different tests.
        ("a.tsv.gz", gzip.compress(b"text\tlabel\n" * 50, mtime=0)[:-12], ""),
        ("a.xlsx", b"text", ".*jsonl"),
        ("a.parquet", b"PAR1", ""),
        ("missing.tsv", None, "no such file"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, name, content, place):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(headjax.DataError, match=f"^{path}: {place}[^\n]*$"):
        read(path, ["text", "label"])
    if place == "no rows" and name == "a.json":
        with pytest.raises(headjax.DataError, match=f"^{path}: no rows"):
            header(path)


def test_columns_may_have_the_names_of_the_data_set(tmp_path):
    rows = (f"{i}\tpremise {i}\tso\tneutral" for i in range(99))
    pairs = write_lines(tmp_path / "pairs.tsv", "index\tpremise\thypothesis\tgold_label", *rows)
    found = task_rows("mnli", pairs)
    assert found["train"][0].keys() == {"text", "second", "label"}
    assert sum(map(len, found.values())) == 99
    assert {row["second"] for row in found["train"]} == {"so"}
    films = write_lines(tmp_path / "films.csv", "label,sentence,text", *(f"1,other,film {i}" for i in range(99)))
    assert task_rows("sst2", films)["train"][0]["text"].startswith("film")  # the field's own name comes first
    table = write_lines(tmp_path / "pairs.csv", "de,en", "Hund,dog")
    assert task_rows("newstest2014_ende", table) == {"validation": [{"source": "dog", "target": "Hund"}]}


def test_test_files_are_not_trained_on(tmp_path):
    for name in ("valid", "test"):
        write_lines(tmp_path / f"{name}.de", f"{name} eins")
        write_lines(tmp_path / f"{name}.en", f"{name} one")
    assert task_rows("iwslt14_deen", tmp_path) == {"validation": [{"source": "valid eins", "target": "valid one"}]}
    assert len(task_rows("newstest2014_ende", tmp_path / "test")["validation"]) == 1
    assert [file.name for file in split_files([tmp_path / "test.de"], (".de",)).train] == ["test.de"]


def test_one_file_is_split_by_its_text(tmp_path):
    file = write_lines(tmp_path / "dev.tsv", "text\tlabel", *(f"film {i}\t{i % 2}" for i in range(200)))
    found = task_rows("sst2", file)
    assert 2 <= len(found["validation"]) <= 25
    assert len(found["train"]) + len(found["validation"]) == 200
    assert not {row["text"] for row in found["train"]} & {row["text"] for row in found["validation"]}
    few = write_lines(tmp_path / "few.tsv", "text\tlabel", "film\t1")
    with pytest.raises(headjax.DataError, match=r"few.tsv: "):
        task_rows("sst2", few)


def test_files_by_the_words_of_their_names(tmp_path):
    names = ["train-00000.txt", "x.valid.txt", "other.txt", "dev/a.txt", "devil.txt"]
    names += [".copies/train.txt", "._train.txt"]  # which are hidden
    (tmp_path / "dev" / "er").mkdir(parents=True)
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_lines(tmp_path / name, "text")
    found = split_files([tmp_path], (".txt",))
    assert found == split_files([tmp_path, tmp_path / "train-00000.txt", tmp_path / "dev"], (".txt",))  # none twice
    assert [file.name for file in found.train] == ["train-00000.txt"]
    assert [file.name for file in found.validation] == ["a.txt", "x.valid.txt"]
    write_lines(tmp_path / "dev" / "deep.txt", "text").rename(tmp_path / "dev" / "er" / "b.txt")
    found = split_files([tmp_path / "o*.txt", tmp_path / "dev"], (".txt",))
    assert [[file.name for file in some] for some in found[:2]] == [["other.txt"], ["a.txt", "b.txt"]]
    (tmp_path / "train-00000.txt").unlink()
    assert [file.name for file in split_files([tmp_path], (".txt",)).train] == ["devil.txt", "other.txt"]


def test_what_is_missing_in_a_cell_is_told_with_its_column(tmp_path, wordpiece):
    """By the name that the table has for it; numbers where it has no header."""
    path = write_lines(tmp_path / "a.tsv", "review\tstars", "good\tyes", " \tno", "bad\tyes", "fun\t")
    columns = {"text": "review", "label": "stars"}
    config = headjax.data.DataConfig(task=f"classification:{path}", columns=columns, whole=True, length=16)
    with pytest.raises(headjax.DataError, match=r"a\.tsv: row 3: review is blank"):
        config.load(wordpiece)
    write_lines(path, "review\tstars", "good\tyes", "bad\tno", "fun\t")
    with pytest.warns(UserWarning, match=r"rows without a label in the column stars .* 1 of 3"):
        assert len(config.load(wordpiece).validation) == 2
