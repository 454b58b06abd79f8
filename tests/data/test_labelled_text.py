from __future__ import annotations

import json
import time

import numpy as np
import pytest

from headjax.core.errors import ConfigError, DataError
from headjax.core.serialize import from_data, to_data
from headjax.data.labelled_text import TextClassification, TextRegression, TextSimilarity
from headjax.data.stream import evaluation_batches
from headjax.data.task import DataConfig
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests.data.vocabulary import WORDS, write_lines, write_vocabulary


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return wordpiece_tokenizer(write_vocabulary(tmp_path_factory.mktemp("vocabulary")))


@pytest.fixture
def tables(tmp_path):
    train = write_lines(
        tmp_path / "train.tsv", "sentence\tlabel", "good film\tpos", "very very bad film\tneg", "fun\tpos"
    )
    write_lines(tmp_path / "dev.tsv", "sentence\tlabel", "not dull\tpos", "dull\tneg")
    return {"path": str(train), "validation": str(tmp_path / "dev.tsv")}


def test_classes_are_numbered_and_rows_padded(tables, tokenizer):
    data = TextClassification(**tables).load(tokenizer)
    assert data.train.values("labels").tolist() == [1, 0, 1]
    assert data.validation.values("labels").tolist() == [1, 0]
    row = data.train[0]
    assert {name: array.shape for name, array in row.items()} == {
        "input_ids": (8,), "token_type_ids": (8,), "attention_mask": (8,), "labels": ()
    }  # fmt: skip
    ids = [WORDS.index(word) for word in ["[CLS]", "good", "film", "[SEP]"]]
    np.testing.assert_array_equal(row["input_ids"], ids + [0] * 4)
    np.testing.assert_array_equal(row["attention_mask"], [1] * 4 + [0] * 4)
    counts = {"examples": 3, "tokens": 4 + 6 + 3, "classes": [1, 2]}
    assert data.info["train"] == data.info["train"] | counts
    json.dumps(data.info)


def test_classes_in_a_given_order(tables, tokenizer):
    data = TextClassification(**tables, classes=("pos", "neg")).load(tokenizer)
    assert data.validation.values("labels").tolist() == [0, 1]
    with pytest.raises(DataError, match=r"train.tsv: line 3: unknown label 'neg'; known: pos$"):
        TextClassification(**tables, classes=("pos",)).load(tokenizer)


@pytest.mark.parametrize("label", ["-Infinity", "1e400", "nan", ""])
def test_a_number_that_is_not_finite_is_no_class(label, tmp_path, tokenizer):
    path = write_lines(tmp_path / "a.tsv", "sentence\tlabel", "film\t0", f"dull\t{label}")
    with pytest.raises(DataError, match=r"a.tsv: line 3: no label"):
        TextClassification(validation=str(path)).load(tokenizer)


def test_many_classes_take_no_longer(tmp_path, tokenizer):
    """Each row once looked through all classes: 8,000 rows of 4,000 classes took three seconds."""
    rows = [f"film\tclass {i % 4000}" for i in range(8000)]
    path = write_lines(tmp_path / "a.tsv", "sentence\tlabel", *rows)
    config = TextClassification(validation=str(path))
    table = config.read()
    form = config.form(table)
    before = time.process_time()
    numbers = [int(form.target(row)[0]) for row in config.numbered(table)["validation"]]
    named = [int(form.target(row)[0]) for row in table["validation"]]
    assert time.process_time() - before < 1.0
    assert numbers == named
    assert sorted(set(numbers)) == list(range(4000))


def test_numeric_labels_are_sorted_as_numbers(tmp_path, tokenizer):
    path = write_lines(tmp_path / "a.tsv", "sentence\tlabel", *(f"film {i}\t{i}" for i in range(11)))
    data = TextClassification(validation=str(path)).load(tokenizer)
    assert data.validation.values("labels").tolist() == list(range(11))
    assert len(data.train) == 0


def test_rows_with_the_same_first_text_are_held_out_together(tmp_path, tokenizer):
    rows = [f"film {i}\tfun {j}\t{j}" for i in range(60) for j in range(3)]
    path = write_lines(tmp_path / "a.tsv", "sentence\tother\tlabel", *rows)
    config = TextClassification(path=str(path), second="other", validation_fraction=0.3)
    train, validation = config.read().values()
    assert 0.15 < len(validation) / len(rows) < 0.45
    assert len(train) + len(validation) == len(rows)
    assert not {row.values["text"] for row in train} & {row.values["text"] for row in validation}
    write_lines(path, "sentence\tother\tlabel", *rows[:3])
    with pytest.raises(DataError, match=r"a.tsv: too few rows to hold some out; name a file for validation$"):
        config.read()


def test_regression_and_its_padding(tmp_path, tokenizer):
    path = write_lines(tmp_path / "a.csv", "good film,fun,2.5", "bad,dull,0")
    data = TextRegression(validation=str(path), text="0", second="1", label="2", scale=5.0).load(tokenizer)
    (batch,) = evaluation_batches(data.validation, 3)
    np.testing.assert_array_equal(batch["labels"], np.float32([0.5, 0.0, np.nan]))
    np.testing.assert_array_equal(batch["attention_mask"][2], 0)
    assert TextSimilarity(validation=str(path), text="0", second="1", label="2").load(tokenizer).validation[0][
        "segment_ids"
    ].tolist() == [1, 1, 1, 1, 2, 2, 2, 0]
    for text, message in (("x", "'x' is not a number"), ("nan", "'nan' is not finite")):
        write_lines(path, "good,fun,1", f"bad,dull,{text}")
        with pytest.raises(DataError, match=rf"a.csv: line 2: the label {message}$"):
            TextRegression(validation=str(path), text="0", second="1", label="2").load(tokenizer)


def test_buckets_hold_every_example_once(tmp_path, tokenizer):
    generator = np.random.default_rng(0)
    rows = [f"{'film ' * generator.integers(1, 40)}\t{i % 2}" for i in range(50)]
    path = write_lines(tmp_path / "a.tsv", "sentence\tlabel", *rows)
    source = TextClassification(validation=str(path), max_length=30).load(tokenizer).validation
    assert source.length == 30  # not above max_length
    parts = source.buckets([8, 16, 64])
    assert [part.length for part in parts] == [8, 16, 30]
    assert sorted(length for part in parts for length in part.lengths) == sorted(source.lengths)
    assert all((part.lengths <= part.length).all() for part in parts)
    assert source.buckets([])[0].length == 30


def test_config_serialises_and_brings_its_vocabulary(tables, tmp_path):
    config = TextClassification(**tables, classes=("neg", "pos"), vocabulary=str(write_vocabulary(tmp_path)))
    assert from_data(DataConfig, json.loads(json.dumps(to_data(config)))) == config
    assert config.load().tokenizer.vocab_size == len(WORDS)
    with pytest.raises(DataError, match=r"^vocabulary: the model brings no tokenizer; name a vocab.txt$"):
        TextClassification(**tables).load()


@pytest.mark.parametrize(
    "fields, message",
    [
        ({}, "path: name a file to train on, one to evaluate on, or both"),
        ({"path": "a", "max_length": 0}, "max_length: must be"),
        ({"path": "a", "validation_fraction": 0.0}, "validation_fraction: must be within"),
    ],
)
def test_bad_fields(fields, message):
    with pytest.raises(ConfigError) as caught:
        TextClassification(**fields)
    assert str(caught.value).startswith(message)
