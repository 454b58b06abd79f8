from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import ConfigError
from headjax.data.examples import sequences
from headjax.data.stream import LengthBuckets, train_iterator
from headjax.mesh.distributed import BatchShare

EXAMPLES = 60


@pytest.fixture(scope="module")
def source():
    generator = np.random.default_rng(0)
    ids = [np.full(generator.integers(1, 33), number + 1, np.int32) for number in range(EXAMPLES)]
    rows = sequences({"input_ids": ids}, {"labels": np.arange(EXAMPLES)})
    return LengthBuckets(rows, (8, 16), window=3)


def batches(source, count, seed=5, **options):
    iterator = train_iterator(source, 4, seed, **options)
    return [next(iterator) for _ in range(count)]


def test_every_example_once_an_epoch_with_little_padding(source):
    epoch = batches(source, 15)
    labels = np.concatenate([batch["labels"] for batch in epoch])
    np.testing.assert_array_equal(np.sort(labels), np.arange(EXAMPLES))
    for batch in epoch:
        np.testing.assert_array_equal(batch["input_ids"][:, 0], batch["labels"] + 1)
        length, longest = batch["input_ids"].shape[1], batch["attention_mask"].sum(axis=1).max()
        assert length == min(end for end in (8, 16, 32) if end >= longest)
    padded = sum(batch["input_ids"].size for batch in epoch)
    plain = sum(batch["input_ids"].size for batch in batches(source.rows, 15))
    assert padded < 0.8 * plain
    again = np.concatenate([batch["labels"] for batch in batches(source, 30)[15:]])
    np.testing.assert_array_equal(np.sort(again), np.arange(EXAMPLES))
    assert (again != labels).any()


def test_position_alone_decides(source):
    whole = batches(source, 8)
    iterator = train_iterator(source, 4, 5, threads=2)
    for _ in range(5):
        next(iterator)
    fresh = train_iterator(source, 4, 5)
    fresh.set_state(iterator.get_state())
    for expected in whole[5:]:
        np.testing.assert_array_equal(next(fresh)["input_ids"], expected["input_ids"])
    halves = [batches(source, 8, share=BatchShare(index, 2)) for index in range(2)]
    for expected, *parts in zip(whole, *halves, strict=True):
        joined = np.concatenate([part["input_ids"] for part in parts])
        np.testing.assert_array_equal(joined, expected["input_ids"])


def test_bad_bounds(source):
    with pytest.raises(ConfigError, match=r"^buckets: must be positive, got \[0, 8\]$"):
        LengthBuckets(source.rows, (0, 8))
