import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headjax.evaluation import measures as metrics

PREDICTED = [1, 1, 0, 1, 0, 0, 1, 0]
GOLD = [1, 0, 0, 1, 1, 0, 1, 0]  # TP 3, FP 1, FN 1, TN 3


def test_counts_by_hand():
    assert metrics.accuracy(PREDICTED, GOLD) == 6 / 8
    assert metrics.f1(PREDICTED, GOLD) == 2 * 3 / (2 * 3 + 1 + 1)
    assert metrics.f1([1, 1, 1, 0], [1, 0, 0, 0], positive=0) == pytest.approx(2 * 1 / (2 * 1 + 0 + 2))
    assert metrics.macro_f1([1, 1, 1, 0], [1, 0, 0, 0]) == pytest.approx((0.5 + 0.5) / 2)
    assert metrics.matthews(PREDICTED, GOLD) == pytest.approx((3 * 3 - 1 * 1) / math.sqrt(4 * 4 * 4 * 4))
    assert metrics.top_k_accuracy([0, 1, 4, 5, 2], 1) == 1 / 5
    assert metrics.top_k_accuracy([0, 1, 4, 5, 2], 5) == 4 / 5


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_matthews_is_gorodkins_correlation_of_classes(pairs):
    """R_K = (c s - sum p_k t_k) / sqrt((s^2 - sum p_k^2) (s^2 - sum t_k^2)), that of numbers where there are two."""
    predicted, gold = np.array(pairs).T
    p, t, s = np.bincount(predicted, minlength=4), np.bincount(gold, minlength=4), len(pairs)
    scale = math.sqrt((s * s - p @ p) * (s * s - t @ t))
    expected = ((predicted == gold).sum() * s - p @ t) / scale if scale else 0.0
    value = metrics.matthews(predicted, gold)
    assert value == pytest.approx(expected, abs=1e-12)
    assert -1 - 1e-12 <= value <= 1 + 1e-12
    assert metrics.matthews(gold, predicted) == pytest.approx(value, abs=1e-12)
    renamed = np.array([7, 2, 9, 4])
    assert metrics.matthews(renamed[predicted], renamed[gold]) == pytest.approx(value, abs=1e-12)
    one, other = (predicted > 1).astype(int), (gold > 1).astype(int)
    if np.ptp(one) and np.ptp(other):
        assert metrics.matthews(one, other) == pytest.approx(np.corrcoef(one, other)[0, 1], abs=1e-12)


def test_correlations():
    x = np.array([1.0, 2.0, 3.0, 5.0, 4.0])
    assert metrics.pearson(x, 3 * x + 1) == pytest.approx(1.0)
    assert metrics.spearman(x, np.exp(x)) == pytest.approx(1.0)
    assert metrics.pearson(x, np.exp(x)) < 0.95
    assert metrics.spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(
        np.corrcoef([1, 2.5, 2.5, 4], [1, 2, 3, 4])[0, 1]
    )


def test_constant_predictions_score_zero():
    for metric in (metrics.matthews, metrics.pearson, metrics.spearman, metrics.f1):
        assert metric(np.zeros(4), np.array([0, 1, 0, 1])) == 0.0


def test_perplexities():
    """A uniform model over 16 tokens of 2 bytes, three of which make a word."""
    loss = math.log(16)
    assert metrics.perplexity(loss) == pytest.approx(16)
    assert metrics.perplexity(loss, 1 / 3) == pytest.approx(16**3)
    assert metrics.perplexity(loss, 2) == pytest.approx(4)
    assert metrics.bits_per_byte(loss, 2) == pytest.approx(math.log2(metrics.perplexity(loss, 2)))
    assert math.isfinite(metrics.perplexity(1e9))
