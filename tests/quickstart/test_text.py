"""Blocks of a text, and its units."""

import numpy as np
import pytest

from headjax.data.task import TaskData
from headjax.quickstart.text import HELD_OUT_BLOCKS, Text, batches


@pytest.fixture
def text():
    def blocks(count, start):
        return [{"input_ids": np.arange(4, dtype=np.int32) + start + place} for place in range(count)]

    info = {"text": "numbers", "validation": {"bytes_per_token": 2.0}}
    return Text(TaskData(None, blocks(100, 0), blocks(200, 1000), info))


def test_a_bit_per_byte_is_ln_2_times_the_bytes_of_a_token(text):
    assert text.bits(2 * np.log(2.0)) == pytest.approx(1.0)
    assert text.perplexity(1.0) == pytest.approx(4.0)
    assert np.exp(3.0) == pytest.approx(text.perplexity(text.bits(3.0)))


def test_held_out_blocks_are_spread_over_the_text_and_judge_everything(text):
    firsts = text.held_out[:, 0] - 1000
    assert len(firsts) == HELD_OUT_BLOCKS
    assert (firsts[0], firsts[-1]) == (0, 199)
    assert np.diff(firsts).max() <= 200 // HELD_OUT_BLOCKS + 1
    assert len(text.data.validation) == HELD_OUT_BLOCKS


def test_training_blocks_are_drawn_without_repetition_and_by_seed(text):
    drawn = text.training_blocks(10)[:, 0]
    assert len(set(drawn.tolist())) == 10
    np.testing.assert_array_equal(drawn, text.training_blocks(10)[:, 0])
    assert set(drawn.tolist()) != set(text.training_blocks(10, seed=1)[:, 0].tolist())


def test_batches_have_one_size():
    assert [len(batch["input_ids"]) for batch in batches(np.zeros((20, 4)), 8)] == [8, 8]
    assert [len(batch["input_ids"]) for batch in batches(np.zeros((3, 4)), 8)] == [3]
