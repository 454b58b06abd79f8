"""Samples of training examples, and training batches of a few lengths."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from headjax.core.errors import ConfigError, DataError
from headjax.data.examples import TokenBlocks, sequences
from headjax.data.task import TaskData
from headjax.evaluation.measures import Classes
from headjax.evaluation.task import Task

LENGTHS = (3, 9, 5, 12, 2, 7)


@pytest.fixture(scope="module")
def task():
    """Example i consists of the token i alone, and has it as its label."""
    ids = [np.full(length, i, np.int32) for i, length in enumerate(LENGTHS)]
    rows = sequences({"input_ids": ids}, {"labels": np.arange(len(LENGTHS))}, padding_id=99)
    return Task("some", TaskData(None, rows, rows, {}), Classes())


def drawn(batches):
    return [int(label) for batch in batches for label in batch["labels"] if label != -100]


def test_a_sample_is_seeded_and_without_replacement(task):
    first = drawn(task.sample(4, 3))
    assert len(set(first)) == len(first) == 4
    assert first == drawn(task.sample(4, 3))
    assert sorted(drawn(task.sample(100, 3))) == list(range(6))
    assert len({tuple(drawn(task.sample(3, 3, seed=seed))) for seed in range(5)}) > 1


def test_buckets_pad_less_and_lose_nothing(task):
    batches = task.sample(6, 2, buckets=(5,))
    assert {batch["input_ids"].shape for batch in batches} == {(2, 5), (2, 16)}
    assert sorted(drawn(batches)) == list(range(6))
    for batch in batches:
        own = batch["attention_mask"] == 1
        assert (batch["input_ids"] == batch["labels"][:, None])[own].all()
    iterator = task.train_batches(2, buckets=(8,))
    assert {next(iterator)["input_ids"].shape[1] for _ in range(12)} == {8, 16}


def test_sources_of_one_length_are_sampled_too(task):
    blocks = TokenBlocks(np.arange(40), 4)
    other = dataclasses.replace(task, data=task.data._replace(train=blocks))
    found = np.concatenate([batch["input_ids"] for batch in other.sample(5, 2)])
    starts = [row[0] for row in found if row.any()]
    assert len(set(starts)) == len(starts)
    assert all(start % 4 == 0 for start in starts)


def test_nothing_to_draw_from_is_an_error(task):
    with pytest.raises(ConfigError, match="count: must be at least 1"):
        task.sample(0)
    empty = dataclasses.replace(task, data=task.data._replace(train=task.data.train.select(np.arange(0))))
    with pytest.raises(DataError, match="it has no examples to train on"):
        empty.sample(3)
