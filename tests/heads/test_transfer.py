from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.heads.head_id import HeadId
from headjax.heads.transfer import transfer

HEADS = [HeadId("encoder", i, h) for i in range(12) for h in range(12)]


def scores(numbers):
    return dict(zip(HEADS, np.asarray(numbers, float).tolist(), strict=False))


def test_a_monotone_curve_has_rank_correlation_one():
    x = np.arange(1.0, 13.0)
    got = transfer(scores(x), scores(np.exp(x)))
    assert got.spearman.value == pytest.approx(1.0)
    assert got.spearman[2:] == (pytest.approx(1.0), pytest.approx(1.0))
    assert got.pearson.value == pytest.approx(np.corrcoef(x, np.exp(x))[0, 1])
    assert got.pearson.value < 0.8
    assert got.heads == tuple(HEADS[:12])


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    """Heads drawn from a population with correlation 0.6, as many as BERT has."""
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(60):
        x, noise = generator.standard_normal((2, 144))
        got = transfer(scores(x), scores(0.6 * x + 0.8 * noise), resamples=200)
        covered += got.pearson.low <= 0.6 <= got.pearson.high
        assert got.pearson.low < got.pearson.value < got.pearson.high
        assert got.pearson.p_value < 0.01
    assert covered >= 50


def test_only_heads_scored_on_both_count():
    second = scores([3.0, 1.0, 2.0, 5.0]) | {HeadId("cross", 0, 0): 9.0}
    got = transfer(scores([1.0, 2.0, 3.0]), second)
    assert len(got.heads) == 3
    np.testing.assert_array_equal(got.second, [3.0, 1.0, 2.0])


def test_bad_data_is_an_error():
    with pytest.raises(DataError, match="scores of 2 heads"):
        transfer(scores([1.0, 2.0]), scores([1.0, 2.0]))
    with pytest.raises(DataError, match="score the same"):
        transfer(scores([1.0, 1.0, 1.0]), scores([1.0, 2.0, 3.0]))
