"""Intervals over seeds and examples, and the one rule by which every claim is judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats

Verdict = Literal["held", "did not hold", "not decided"]

NORMAL = float(stats.norm.ppf(0.975))


class Estimate(NamedTuple):
    """A measured number.

    Attributes:
        value: The number.
        low, high: Its 95 % interval; NaN where it has none.
        over: What the interval covers, such as "3 seeds x 872 examples".
    """

    value: float
    low: float
    high: float
    over: str = ""


class Bound(NamedTuple):
    """Values that a claim allows, `least <= value <= most`."""

    least: float = -np.inf
    most: float = np.inf


def verdict(found: Estimate, bound: Bound) -> Verdict:
    """Return the verdict of a claim, by the whole interval; without one nothing is decided."""
    if not np.isfinite((found.low, found.high)).all():
        return "not decided"
    if bound.least <= found.low and found.high <= bound.most:
        return "held"
    return "did not hold" if found.high < bound.least or found.low > bound.most else "not decided"


class Sample(NamedTuple):
    """A number of one trained model, such as its paired change of accuracy.

    Attributes:
        value: Mean over the examples.
        low, high: 95 % interval over the examples; NaN where none was measured.
    """

    value: float
    low: float = np.nan
    high: float = np.nan

    @property
    def variance(self) -> float:
        """Variance over the draw of examples."""
        return ((self.high - self.low) / (2 * NORMAL)) ** 2


def over_seeds_and_examples(samples: Sequence[Sample]) -> tuple[float, float, float]:
    """Return the mean of several models' numbers and its 95 % interval for new seeds and new examples.

    Models that are judged on the same examples share the luck of their draw: a mean over models does not average it
    away. With M models, s^2 the variance between them and v the mean variance over the examples,

        mean +- sqrt(t^2 s^2 / M + 1.96^2 v),    t of M - 1 degrees of freedom,

    which covers both, a little more than 95 % of the time. (A bootstrap over three models and their examples is too
    narrow: three values drawn from three vary too little.) Without v the interval covers seeds alone; of one model it
    is the model's own, over examples alone.
    """
    values = np.array([sample.value for sample in samples], dtype=float)
    mean, count = float(values.mean()), len(values)
    if count == 1:
        return samples[0].value, samples[0].low, samples[0].high
    between = float(values.var(ddof=1)) / count
    shared = [sample.variance for sample in samples if np.isfinite(sample.variance)]
    within = float(np.mean(shared)) if len(shared) == count else 0.0
    half = np.sqrt(stats.t.ppf(0.975, count - 1) ** 2 * between + NORMAL**2 * within)
    return mean, float(mean - half), float(mean + half)


def share(samples: Sequence[Sample], bound: Bound, *, exact: bool = False) -> tuple[float, float, float]:
    """Return the share of items within a bound, and the shares that are surely within and possibly within.

    An item is surely within where its whole interval is, possibly where not its whole interval is beyond. `exact`
    items have no error of measurement.
    """
    items = [Sample(each.value, each.value, each.value) if exact else each for each in samples]
    verdicts = [verdict(Estimate(*each), bound) for each in items]
    within = [bound.least <= each.value <= bound.most for each in items]
    return (
        float(np.mean(within)),
        float(np.mean([each == "held" for each in verdicts])),
        1.0 - float(np.mean([each == "did not hold" for each in verdicts])),
    )
