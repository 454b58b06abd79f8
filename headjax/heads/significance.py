"""Tests of a difference between two models on the same examples, and correlations of scores on two data sets.

Every test is two-sided and paired: both models saw the same examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from headjax.core.errors import DataError
from headjax.heads.gates import Values
from headjax.heads.head_id import HeadId


class Comparison(NamedTuple):
    """Result of a paired test.

    Attributes:
        difference: Metric of the changed model minus that of the baseline.
        p_value: Probability of a difference at least as large if both were equally good.
        low, high: 95 % confidence interval of the difference.
    """

    difference: float
    p_value: float
    low: float
    high: float


def t_test(baseline: np.ndarray, changed: np.ndarray) -> Comparison:
    """Run Student's paired t-test on per-example values `[examples]` (losses, squared errors).

    Raises:
        DataError: There are fewer than two examples, or not the same number of both.
    """
    from scipy import stats

    change = _paired(baseline, changed)
    if not np.ptp(change):
        # No variance: the statistic is 0/0 or infinite.
        p_value = 1.0 if change[0] == 0.0 else 0.0
        return Comparison(float(change[0]), p_value, float(change[0]), float(change[0]))
    result = stats.ttest_1samp(change, 0.0)
    interval = result.confidence_interval(0.95)
    return Comparison(float(change.mean()), float(result.pvalue), float(interval.low), float(interval.high))


def mcnemar(baseline: np.ndarray, changed: np.ndarray) -> Comparison:
    """Run McNemar's exact test on right and wrong answers, `[examples]` of 1 and 0.

    Only examples that one model alone gets right count. If both were equally good, each model would be that one with
    probability 1/2. The interval is Bonett and Price's (2012) for a difference of paired proportions: with one example
    added to those that either model alone gets right, g of n + 2 and l of n + 2,

        (g - l) / (n + 2) +- 1.96 sqrt((g + l) / (n + 2) - ((g - l) / (n + 2))^2) / sqrt(n + 2).

    The interval is not the test turned around, so the two may disagree where a p-value is close to 0.05.

    Raises:
        DataError: There are values other than 0 and 1, fewer than two examples, or not the same number of both.
    """
    from scipy import stats

    change = _paired(baseline, changed)
    if not np.isin(baseline, (0, 1)).all() or not np.isin(changed, (0, 1)).all():
        raise DataError("mcnemar: every value must be 0 (wrong) or 1 (right)")
    gained, lost = int((change > 0).sum()), int((change < 0).sum())
    p_value = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    examples = len(change) + 2
    middle, changed_share = (gained - lost) / examples, (gained + lost + 2) / examples
    half = stats.norm.ppf(0.975) * np.sqrt((changed_share - middle**2) / examples)
    return Comparison(float(change.mean()), float(p_value), float(middle - half), float(middle + half))


def paired_bootstrap(
    baseline: np.ndarray,
    changed: np.ndarray,
    metric: Callable[[np.ndarray], float] | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Run the paired bootstrap (Koehn 2004) for metrics of a whole corpus (BLEU, F1, correlations).

    Examples are drawn with replacement, the same ones for both models. The p-value is twice the share of resamples
    whose difference does not have the sign of the full data's; the full data count as one resample.

    Args:
        baseline, changed: `[examples, ...]` per-example values, or other inputs of the metric.
        metric: Function of `[examples, ...]` that returns a number; None is the mean.
        resamples: Number of resamples.
        seed: Seed of the draws.

    Raises:
        DataError: There are fewer than two examples, or not the same number of both.
    """
    _paired(baseline, changed)
    measure = metric or (lambda values: float(values.mean()))
    difference = measure(changed) - measure(baseline)
    generator = np.random.default_rng(seed)
    differences = np.empty(resamples)
    for i in range(resamples):
        drawn = generator.integers(0, len(baseline), len(baseline))
        differences[i] = measure(changed[drawn]) - measure(baseline[drawn])
    against = (differences * np.sign(difference) <= 0.0).sum() if difference else resamples
    low, high = np.quantile(differences, (0.025, 0.975))
    p_value = min(1.0, 2.0 * (against + 1) / (resamples + 1))
    return Comparison(float(difference), float(p_value), float(low), float(high))


def _paired(baseline: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """Return the change of every example."""
    if len(baseline) != len(changed):
        raise DataError(f"significance: {len(baseline)} and {len(changed)} examples are not pairs")
    if len(baseline) < 2:
        raise DataError(f"significance: {len(baseline)} examples are too few for a test")
    return np.asarray(changed, np.float64) - np.asarray(baseline, np.float64)


class Correlation(NamedTuple):
    """Correlation coefficient over heads.

    Attributes:
        value: Coefficient.
        p_value: Two-sided probability of such a value without correlation.
        low, high: 95 % bootstrap interval, heads drawn with replacement.
    """

    value: float
    p_value: float
    low: float
    high: float


class Transfer(NamedTuple):
    """Correlations of the scores of heads on two data sets.

    Attributes:
        pearson: Correlation of the scores.
        spearman: Correlation of their ranks.
        heads: Heads with a score on both.
        first, second: `[heads]` scores, for a scatter plot.
    """

    pearson: Correlation
    spearman: Correlation
    heads: tuple[HeadId, ...]
    first: np.ndarray
    second: np.ndarray


def transfer(first: Values, second: Values, *, resamples: int = 1000, seed: int = 0) -> Transfer:
    """Correlate one score of the heads on two data sets (Michel et al. 2019, figure 2).

    Args:
        first, second: Score of every head on each data set.
        resamples: Number of bootstrap samples.
        seed: Seed of the bootstrap.

    Raises:
        DataError: The data sets share fewer than three heads, or all scores of one are equal.
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
    """Return Pearson's r of each row; NaN where a row draws only equal values."""
    x, y = (rows - rows.mean(axis=1, keepdims=True) for rows in (x, y))
    norm = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    return np.divide((x * y).sum(axis=1), norm, out=np.full(len(norm), np.nan), where=norm > 0.0)
