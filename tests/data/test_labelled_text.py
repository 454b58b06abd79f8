"""Tables of texts with labels, numbers or similarities, and GLUE's."""

import json

import numpy as np
import pytest

import headjax
from tests.data.making import labels
from tests.data.vocabulary import WORDS, write_lines


def judged(path, task="classification", **fields):
    """All rows of a table, to evaluate on."""
    return headjax.data.DataConfig(task=f"{task}:{path}", whole=True, **fields)


def numbered(*columns):
    """Columns by number."""
    return dict(zip(("text", "second", "label"), columns, strict=True))


@pytest.fixture
def tables(tmp_path):
    train = write_lines(
        tmp_path / "train.tsv", "sentence\tlabel", "good film\tpos", "very very bad film\tneg", "fun\tpos"
    )
    write_lines(tmp_path / "dev.tsv", "sentence\tlabel", "not dull\tpos", "dull\tneg")
    return {"task": f"classification:{train}", "validation": str(tmp_path / "dev.tsv")}


def test_classes_are_numbered_and_rows_padded(tables, wordpiece):
    data = headjax.data.DataConfig(**tables).load(wordpiece)
    assert labels(data.train) == [1, 0, 1]
    assert labels(data.validation) == [1, 0]
    row = data.train[0]
    assert {name: array.shape for name, array in row.items()} == {
        "input_ids": (8,), "token_type_ids": (8,), "attention_mask": (8,), "labels": ()
    }  # fmt: skip
    ids = [WORDS.index(word) for word in ["[CLS]", "good", "film", "[SEP]"]]
    np.testing.assert_array_equal(row["input_ids"], ids + [0] * 4)
    np.testing.assert_array_equal(row["attention_mask"], [1] * 4 + [0] * 4)
    counts = {"examples": 3, "tokens": 4 + 6 + 3}
    assert data.info["train"] == data.info["train"] | counts
    json.dumps(data.info)


def test_classes_in_a_given_order_and_numbers_in_their_own(tables, tmp_path, wordpiece):
    data = headjax.data.DataConfig(**tables, classes=("pos", "neg")).load(wordpiece)
    assert labels(data.validation) == [0, 1]
    with pytest.raises(headjax.DataError, match=r"train.tsv: row 3: .*'neg'"):
        headjax.data.DataConfig(**tables, classes=("pos",)).load(wordpiece)
    path = write_lines(tmp_path / "a.tsv", "sentence\tlabel", *(f"film {i}\t{i}" for i in range(11)))
    data = judged(path).load(wordpiece)
    assert labels(data.validation) == list(range(11))
    assert len(data.train) == 0
    for numbers in (("01", "1"), ("1", "01")):
        write_lines(path, "sentence\tlabel", *(f"film\t{number}" for number in numbers))
        assert judged(path).load(wordpiece).info["labels"] == ["01", "1"]
    write_lines(path, "sentence\tlabel", "film\tgood", "dull\tbad ", "fun\tgood ")
    data = judged(path).load(wordpiece)
    assert (data.info["labels"], labels(data.validation)) == (["bad", "good"], [1, 0, 1])


@pytest.mark.parametrize("label", ["-1", "-1.0", "", " ", "nan", "NULL", "-", "-Infinity", "1e400"])
def test_rows_without_a_label_are_left_out_and_counted(tmp_path, wordpiece, label):
    """-1 as `datasets` has it, blank, as MNLI's files have it, or as a program wrote it: never a class."""
    path = write_lines(tmp_path / "a.tsv", "sentence\tlabel", "film\t1", f"dull\t{label}", "fun\t0", f"bad\t{label}")
    for classes in ((), ("0", "1")):
        with pytest.warns(UserWarning, match=r"a\.tsv: .*label.* 2 of 4 in validation"):
            data = judged(path, classes=classes).load(wordpiece)
        assert (data.info["labels"], labels(data.validation)) == (["0", "1"], [1, 0])
    # Where a class has that name, it is one.
    named = judged(path, classes=(label.strip(), "0", "1"))
    assert labels(named.load(wordpiece).validation) == [2, 0, 1, 0]
    write_lines(path, "sentence\tlabel", f"dull\t{label}")
    for classes in ((), ("0", "1")):
        with pytest.raises(headjax.DataError, match=r"a\.tsv: .*label"):
            judged(path, classes=classes).load(wordpiece)


def test_numbers_may_be_missing_and_scores_too(tmp_path, wordpiece):
    """-1 is a number; but among scores from 0 to 5 it is none."""
    path = write_lines(tmp_path / "a.csv", "a,b,2.5", "a,b,-1", "a,b,", "a,b,nan")
    columns = numbered("0", "1", "2")

    def scored(**form):
        return judged(path, "similarity", columns=columns, form=form)

    for config, expected in (
        (judged(path, "regression", columns=columns), [2.5, -1.0]),
        (scored(scale=1.0), [2.5, -1.0]),
        (scored(scale=5.0), [0.5]),
    ):
        with pytest.warns(UserWarning, match=rf"a\.csv: .* {4 - len(expected)} of 4 "):
            assert labels(config.load(wordpiece).validation) == expected


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_labels_of_typed_tables_may_be_missing(tmp_path, wordpiece, suffix):
    """Null, NaN (pandas makes numbers of integers beside it) and -1; whole numbers with a point are class numbers."""
    rows = [{"sentence": f"film {i}", "label": label} for i, label in enumerate([1.0, None, float("nan"), -1.0, 10.0])]
    path = tmp_path / f"a.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        table = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(table.Table.from_pylist(rows), path)
    with pytest.warns(UserWarning, match=r"label.* 3 of 5 "):
        data = judged(path).load(wordpiece)
    assert (data.info["labels"], labels(data.validation)) == (["1", "10"], [0, 1])


def test_plus_and_minus_are_classes(tmp_path, wordpiece):
    path = write_lines(tmp_path / "a.tsv", "sentence\tlabel", "film\t+", "dull\t-")
    assert labels(judged(path).load(wordpiece).validation) == [0, 1]


def test_rows_with_the_same_first_text_are_held_out_together(tmp_path, wordpiece):
    rows = [f"film {i}\tfun {j}\t{j}" for i in range(60) for j in range(3)]
    path = write_lines(tmp_path / "a.tsv", "sentence\tother\tlabel", *rows)
    columns = numbered("sentence", "other", "label")
    config = headjax.data.DataConfig(task=f"pairs:{path}", columns=columns, validation_fraction=0.3)
    train, validation = ([*source.rows()] for source in config.open().rows.values())
    assert 0.15 < len(validation) / len(rows) < 0.45
    assert len(train) + len(validation) == len(rows)
    assert not {row.values["text"] for row in train} & {row.values["text"] for row in validation}
    write_lines(path, "sentence\tother\tlabel", *rows[:3])
    with pytest.raises(headjax.DataError, match=r"a.tsv: "):
        config.open()


def test_the_second_text_of_a_pair_may_be_blank(tmp_path, wordpiece):
    """It is in two training pairs of QQP; a pair without its first text has a column that is not the text's."""
    path = write_lines(tmp_path / "a.tsv", "sentence\tother\tlabel", "good film\t\t0", "fun\tdull\t1")
    data = judged(path, columns=numbered("sentence", "other", "label")).load(wordpiece)
    words = ["[CLS]", "good", "film", "[SEP]", "[SEP]", "[PAD]"]
    assert data.validation[0]["input_ids"][:6].tolist() == [WORDS.index(word) for word in words]
    write_lines(path, "sentence\tother\tlabel", "\tgood film\t0")
    with pytest.raises(headjax.DataError, match=r"a.tsv: row 2: sentence is blank"):
        judged(path, columns=numbered("sentence", "other", "label")).load(wordpiece)


def test_regression_and_its_padding(tmp_path, wordpiece):
    path = write_lines(tmp_path / "a.csv", "good film,fun,2.5", "bad,dull,0")
    columns = numbered("0", "1", "2")
    data = judged(path, "regression", columns=columns, form={"scale": 5.0}).load(wordpiece)
    (batch,) = headjax.evaluation_batches(data.validation, 3)
    np.testing.assert_array_equal(batch["labels"], np.float32([0.5, 0.0, np.nan]))
    np.testing.assert_array_equal(batch["attention_mask"][2], 0)
    pairs = judged(path, "similarity", columns=columns).load(wordpiece).validation
    assert pairs[0]["segment_ids"].tolist() == [1, 1, 1, 1, 2, 2, 2, 0]
    for text in ("x", "inf"):
        write_lines(path, "good,fun,1", f"bad,dull,{text}")
        with pytest.raises(headjax.DataError, match=rf"a.csv: row 2: the label '{text}'"):
            judged(path, "regression", columns=columns).load(wordpiece)


def test_glue_layouts(tmp_path, wordpiece, monkeypatch):
    folder = tmp_path / "glue" / "RTE"
    folder.mkdir(parents=True)
    for name in ("train", "dev"):
        write_lines(folder / f"{name}.tsv", "index\tsentence1\tsentence2\tlabel", "0\ta film\tfun\tnot_entailment")
    monkeypatch.setenv("HEADJAX_DATA", str(tmp_path))
    data = headjax.data.DataConfig(task="rte").load(wordpiece)
    assert labels(data.validation) == [1]
    assert headjax.data.DataConfig(task=f"rte:{folder}").load(wordpiece).info == data.info
    with pytest.raises(headjax.DataError, match=r"HEADJAX_DATA .*glue/CoLA"):
        headjax.data.DataConfig(task="cola").load(wordpiece)
    monkeypatch.delenv("HEADJAX_DATA")
    with pytest.raises(headjax.DataError, match=r"^mnli: .*HEADJAX_DATA"):
        headjax.data.DataConfig(task="mnli").load(wordpiece)
    with pytest.raises(headjax.DataError, match=r"^task: .*'sst-2'; did you mean 'sst2'"):
        headjax.data.DataConfig(task="sst-2").load(wordpiece)
