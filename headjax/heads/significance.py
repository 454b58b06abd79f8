"""Two-sided paired tests of a difference between two models, which both saw the same examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headjax.core.errors import DataError


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
    """Run Student's paired t-test on per-example values `[examples]` (losses, squared errors)."""
    from scipy import stats

    change = _paired(baseline, changed)
    if not np.ptp(change):
        # No variance: the statistic is 0/0 or infinite.
        p_value = 1.0 if change[0] == 0.0 else 0.0
        return Comparison(float(change[0]), p_value, float(change[0]), float(change[0]))
    result = stats.ttest_rel(np.asarray(changed, np.float64), np.asarray(baseline, np.float64))
    interval = result.confidence_interval(0.95)
    return Comparison(float(change.mean()), float(result.pvalue), float(interval.low), float(interval.high))


def mcnemar(baseline: np.ndarray, changed: np.ndarray) -> Comparison:
    """Run McNemar's exact test on right and wrong answers, `[examples]` of 1 and 0.

    Only examples that one model alone gets right count. If both were equally good, each model would be that one with
    probability 1/2. The interval is Bonett and Price's (2012) for a difference of paired proportions: with one example
    added to those that either model alone gets right, g of n + 2 and l of n + 2,

        (g - l) / (n + 2) +- 1.96 sqrt((g + l) / (n + 2) - ((g - l) / (n + 2))^2) / sqrt(n + 2).

    The interval is not the test turned around, so the two may disagree where a p-value is close to 0.05.
    """
    from scipy import stats

    change = _paired(baseline, changed)
    gained, lost = int((change > 0).sum()), int((change < 0).sum())
    p_value = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    examples = len(change) + 2
    middle, changed_share = (gained - lost) / examples, (gained + lost + 2) / examples
    half = stats.norm.ppf(0.975) * np.sqrt((changed_share - middle**2) / examples)
    return Comparison(float(change.mean()), float(p_value), float(middle - half), float(middle + half))


def paired_bootstrap(
    baseline: np.ndarray,
    changed: np.ndarray,
    metric: Callable[[np.ndarray], float] = np.mean,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Run the paired bootstrap (Koehn 2004) for metrics of a whole corpus (BLEU, F1, correlations).

    Examples are drawn with replacement, the same ones for both models. The p-value is twice the share of resamples
    whose difference does not have the sign of the full data's; the full data count as one resample.
    """
    from scipy import stats

    def change(drawn: np.ndarray) -> float:
        return float(metric(changed[drawn]) - metric(baseline[drawn]))

    examples = np.arange(len(_paired(baseline, changed)))
    options: Any = {"n_resamples": resamples, "rng": np.random.default_rng(seed), "batch": 1, "vectorized": False}
    found = stats.bootstrap((examples,), change, method="percentile", **options)
    difference = change(examples)
    against = (found.bootstrap_distribution * np.sign(difference) <= 0.0).sum() if difference else resamples
    p_value = min(1.0, 2.0 * (against + 1) / (resamples + 1))
    low, high = found.confidence_interval
    return Comparison(difference, float(p_value), float(low), float(high))


def _paired(baseline: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """Return the change of every example."""
    if len(baseline) < 2:
        raise DataError(f"significance: {len(baseline)} examples are too few for a test")
    return np.asarray(changed, np.float64) - np.asarray(baseline, np.float64)
