"""Metrics of predictions against labels. All are computed in float64 with NumPy, on arrays `[examples]`.

Rates are fractions of 1. A metric whose formula is undefined (no positive prediction, a constant column) is 0.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike


def accuracy(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return mean_i [prediction_i = label_i]."""
    predicted, gold = np.asarray(predictions), np.asarray(labels)
    return float((predicted == gold).mean())


def top_k_accuracy(ranks: ArrayLike, k: int) -> float:
    """Return mean_i [rank_i < k], where rank_i `[examples]` counts the classes that score higher than the right one."""
    return float((np.asarray(ranks) < k).mean())


def f1(predictions: ArrayLike, labels: ArrayLike, positive: int = 1) -> float:
    """Return 2 TP / (2 TP + FP + FN) of the class `positive`: the harmonic mean of its precision and recall."""
    predicted, gold = np.asarray(predictions), np.asarray(labels)
    hits = 2.0 * ((predicted == positive) & (gold == positive)).sum()
    return float(_ratio(hits, (predicted == positive).sum() + (gold == positive).sum()))


def macro_f1(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean of `f1` over the classes that occur among predictions or labels."""
    predicted, gold = np.asarray(predictions), np.asarray(labels)
    return float(np.mean([f1(predicted, gold, label) for label in np.union1d(predicted, gold)]))


def matthews(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return Matthews' correlation coefficient for any number of classes (Gorodkin 2004), CoLA's metric.

    With p and l the one-hot predictions and labels `[examples, classes]`: cov(p, l) / sqrt(cov(p, p) cov(l, l)), each
    covariance summed over classes. For two classes this is
    (TP TN - FP FN) / sqrt((TP + FP) (TP + FN) (TN + FP) (TN + FN)).
    """
    predicted, gold = np.asarray(predictions), np.asarray(labels)
    classes = np.union1d(predicted, gold)
    p, l = (np.bincount(np.searchsorted(classes, column), minlength=len(classes)) for column in (predicted, gold))  # noqa: E741
    total, right = float(len(gold)), float((predicted == gold).sum())
    spread = (total**2 - float(p @ p)) * (total**2 - float(l @ l))
    return _ratio(right * total - float(p @ l), math.sqrt(spread))


def pearson(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return Pearson's correlation coefficient, cov(p, l) / sqrt(cov(p, p) cov(l, l))."""
    predicted, gold = np.asarray(predictions, np.float64), np.asarray(labels, np.float64)
    return float(np.corrcoef(predicted, gold)[0, 1]) if np.ptp(predicted) and np.ptp(gold) else 0.0


def spearman(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return Spearman's rank correlation: Pearson's coefficient of the ranks; ties have their mean rank."""
    from scipy import stats

    return pearson(stats.rankdata(predictions), stats.rankdata(labels))


def reciprocal_rank(relevance: ArrayLike, cut: int) -> float:
    """Return 1 / rank of the first relevant item, counted from 1; 0 if none of the first `cut` items is relevant.

    `relevance` `[items]` is in the order of the ranking, above 0 for relevant items.
    """
    places = np.flatnonzero(np.asarray(relevance)[:cut] > 0)
    return 1.0 / (int(places[0]) + 1) if places.size else 0.0


def ndcg(relevance: ArrayLike, cut: int) -> float:
    """Return DCG / the DCG of the best order, with DCG = sum_i relevance_i / log2(i + 1) over the first `cut`, from 1.

    `relevance` `[items]` is in the order of the ranking and not negative (Järvelin and Kekäläinen 2002).
    """
    gains = np.maximum(np.asarray(relevance, np.float64), 0.0)
    discounts = 1.0 / np.log2(np.arange(2, min(cut, len(gains)) + 2))
    return _ratio(float(gains[:cut] @ discounts), float(np.sort(gains)[::-1][:cut] @ discounts))


def perplexity(loss: float, units_per_target: float = 1.0) -> float:
    """Return exp(loss / units_per_target)."""
    return math.exp(min(loss / units_per_target, 700.0))


def bits_per_byte(loss: float, bytes_per_target: float) -> float:
    """Return loss / (ln 2 * bytes_per_target), the logarithm to base 2 of the perplexity per byte."""
    return loss / math.log(2.0) / bytes_per_target


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
