"""Whether heads matter alike on two data sets (Michel et al. 2019, figure 2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headjax.core.errors import DataError
from headjax.heads.gates import Values
from headjax.heads.head_id import HeadId


class Correlation(NamedTuple):
    """A correlation coefficient over heads.

    Attributes:
        value: the coefficient.
        p_value: two-sided, of no correlation.
        low, high: 95 % bootstrap interval, heads drawn with replacement.
    """

    value: float
    p_value: float
    low: float
    high: float


class Transfer(NamedTuple):
    """How the scores of heads on two data sets go together.

    Attributes:
        pearson: of the scores.
        spearman: of their ranks.
        heads: the heads that both score.
        first, second: `[heads]` their scores, for a scatter plot.
    """

    pearson: Correlation
    spearman: Correlation
    heads: tuple[HeadId, ...]
    first: np.ndarray
    second: np.ndarray


def transfer(first: Values, second: Values, *, resamples: int = 1000, seed: int = 0) -> Transfer:
    """Correlates one score of the heads on two data sets.

    Args:
        first, second: a score of every head on each data set.
        resamples: number of bootstrap samples.
        seed: of the bootstrap.

    Raises:
        DataError: they share fewer than three heads, or all scores of one are equal.
    """
    from scipy import stats

    heads = tuple(head for head in first if head in second)
    if len(heads) < 3:
        raise DataError(f"transfer: the two data sets share scores of {len(heads)} heads, at least 3 are needed")
    x, y = (np.array([values[head] for head in heads], np.float64) for values in (first, second))
    if not np.ptp(x) or not np.ptp(y):
        raise DataError("transfer: all heads score the same on one data set, so that nothing can be correlated")
    drawn = np.random.default_rng(seed).integers(0, len(heads), (resamples, len(heads)))
    xs, ys = x[drawn], y[drawn]
    pearson, spearman = stats.pearsonr(x, y), stats.spearmanr(x, y)
    return Transfer(
        _correlation(pearson.statistic, pearson.pvalue, _pearson(xs, ys)),
        _correlation(
            spearman.statistic, spearman.pvalue, _pearson(stats.rankdata(xs, axis=1), stats.rankdata(ys, axis=1))
        ),
        heads,
        x,
        y,
    )


def _correlation(value: float, p_value: float, samples: np.ndarray) -> Correlation:
    low, high = np.nanquantile(samples, (0.025, 0.975))
    return Correlation(float(value), float(p_value), float(low), float(high))


def _pearson(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pearson's r of each row; NaN where a row draws only equal values."""
    x, y = (rows - rows.mean(axis=1, keepdims=True) for rows in (x, y))
    norm = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    return np.divide((x * y).sum(axis=1), norm, out=np.full(len(norm), np.nan), where=norm > 0.0)
