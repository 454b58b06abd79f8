from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.data.augmentation import Augmentation
from headjax.data.forms import LabelledForm, LanguageForm
from headjax.data.loading import Reading, load_rows, totals
from headjax.data.rows import Row
from headjax.data.stream import LengthBuckets
from headjax.tokenizers.learned import byte_tokenizer


def films(*labels):
    return [Row(f"line {i}", {"text": "a good film", "label": label}) for i, label in enumerate(labels)]


def test_rows_become_a_tasks_data(wordpiece):
    form = LabelledForm(length=8, classes=("bad", "good"))
    rows = {"train": films("bad", 1, "good"), "validation": films("good")}
    data = load_rows(form, rows, wordpiece, {"text": "films"}, Reading(metrics=("f1",), buckets=(4,)))
    assert isinstance(data.train, LengthBuckets)
    assert data.train.rows.values("labels").tolist() == [0, 1, 1]
    assert data.info["text"] == "films"
    assert data.info["labels"] == ["bad", "good"]
    assert data.info["train"] == totals([(3, {"tokens": 15, "words": 9, "bytes": 33})])
    assert data.measured.arguments["headline"] == "f1"
    unread = load_rows(form, {**rows, "train": []}, wordpiece, {})
    assert len(unread.train) == 0
    np.testing.assert_array_equal(unread.validation[0]["labels"], 1)


def test_choices_that_do_not_suit_the_examples(wordpiece):
    form = LabelledForm(length=8, classes=("bad", "good"))
    rows = {"train": films("bad"), "validation": films("good")}
    with pytest.raises(DataError, match=r"config.data.augmentation: the examples of this task are not images"):
        load_rows(form, rows, wordpiece, {}, Reading(augmentation=Augmentation()))
    texts = {split: [Row("a", {"text": "some text"})] for split in ("train", "validation")}
    with pytest.raises(DataError, match=r"config.data.buckets: the examples of this task are all of one length"):
        load_rows(LanguageForm(length=4), texts, byte_tokenizer(), {}, Reading(buckets=(2,)))
    with pytest.raises(DataError, match=r"length: the train text has 10 tokens, less than one block of 64"):
        load_rows(LanguageForm(length=64), texts, byte_tokenizer(), {})


def test_totals_add_up_over_shards():
    parts = [(2, {"tokens": 10, "words": 4}), (3, {"tokens": 6, "words": 4})]
    assert totals(parts) == {"examples": 5, "tokens": 16, "words": 8, "words_per_token": 0.5}
    assert totals([]) == {"examples": 0}
