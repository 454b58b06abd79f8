"""Rehearsal data: every task has some, in the shapes of its form, the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import ConfigError, DataError
from headjax.data import Rehearsal
from headjax.data.known_data import made_up_rows
from headjax.data.tasks import TASKS

ONE_OF_EACH_FORM = ("lm1b", "bert_pretraining", "mnli", "stsb", "squad", "wmt14_ende", "imagenet")


@pytest.mark.parametrize("name", ONE_OF_EACH_FORM)
def test_examples_have_the_asked_length_and_are_the_same_every_time(name):
    data, again = Rehearsal(task=name).load(), Rehearsal(task=name).load()
    assert data.info["data"] == again.info["data"]
    assert data.info["task"] == name
    example = data.train[0]
    for key, array in example.items():
        np.testing.assert_array_equal(array, again.train[0][key])
    if name == "imagenet":
        assert example["pixel_values"].shape == (3, 32, 32)
    else:
        assert len(example["input_ids"]) <= 96
        assert data.tokenizer.vocab_size <= 320
    assert len(data.validation) >= 8
    data.validation[len(data.validation) - 1]


def test_there_are_rows_for_every_task():
    assert {type(TASKS[name].form) for name in ONE_OF_EACH_FORM} == {type(spec.form) for spec in TASKS.values()}


def test_labels_follow_from_the_examples():
    data = Rehearsal(task="mnli").load()
    assert {int(data.train[index]["labels"]) for index in range(len(data.train))} == {0, 1, 2}
    pair = next(made_up_rows(TASKS["wmt14_ende"].form)).values
    assert pair["target"].split() == pair["source"].split()[::-1]
    asked = next(made_up_rows(TASKS["squad"].form)).values
    assert asked["context"][asked["start"] :].startswith(asked["answers"][0])


def test_bad_requests():
    with pytest.raises(ConfigError, match="train: must be an integer of at least 1"):
        Rehearsal(task="mnli", train=0)
    with pytest.raises(DataError, match="unknown task 'mnl'; did you mean 'mnli'"):
        Rehearsal(task="mnl").load()
