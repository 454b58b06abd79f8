"""Batches of a run: training goes on at a position, and validation pads as training does."""

from __future__ import annotations

import numpy as np
import pytest

import headjax
from headjax.training.run import Feed, prepare, validation_batches
from tests.data.vocabulary import TEXT, write_lines, write_vocabulary
from tests.training.runs import config, walk


@pytest.fixture
def data():
    return walk()


def test_a_feed_goes_on_at_a_position(data, tmp_path):
    def feed_of(data):
        return Feed(prepare(config(), tmp_path, data)[0])

    feed = feed_of(data)
    drawn = [np.asarray(next(feed)["input_ids"]) for _ in range(3)]
    position = feed.position
    drawn += [np.asarray(next(feed)["input_ids"])]
    assert not np.array_equal(drawn[0], drawn[3])
    again = feed_of(data)
    again.go_to(position, tmp_path)
    np.testing.assert_array_equal(next(again)["input_ids"], drawn[3])
    other = feed_of(data._replace(info={"data": "letters"}))
    with pytest.raises(headjax.DataError, match=r"^config\.data: "):
        other.go_to(position, tmp_path)


def test_validation_needs_examples(data, tmp_path):
    with pytest.raises(headjax.DataError, match=r"^config\.data: "):
        prepare(config(), tmp_path, data._replace(validation=[]))


def test_validation_is_padded_no_more_than_training(tmp_path):
    generator = np.random.default_rng(0)
    sentences = [" ".join(generator.choice(TEXT[:12], generator.integers(2, 14))) for _ in range(30)]
    rows = write_lines(tmp_path / "rows.tsv", "sentence\tlabel", *(f"{text}\t{len(text) % 2}" for text in sentences))
    vocabulary = str(write_vocabulary(tmp_path))
    config = headjax.data.DataConfig(
        task=str(rows), validation=str(rows), length=16, buckets=(8,), tokenizer=vocabulary
    )
    data = config.load()
    batches = list(validation_batches(data, 4))
    short = int((data.validation.lengths <= 8).sum())
    assert 0 < short < 30
    padded = [batch["input_ids"].shape[1] for batch in batches]
    assert padded == [8] * -(-short // 4) + [16] * -(-(30 - short) // 4)
    assert sum(int((batch["labels"] >= 0).sum()) for batch in batches) == len(data.validation)
