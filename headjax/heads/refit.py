"""Least squares from sums of products: a linear map solved anew, with a ridge chosen on held-out examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

RIDGES = (1e-4, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Ridges to choose from, as shares of the mean square of a feature."""


class RefitSums(NamedTuple):
    """Sums over the tokens of two halves of the examples.

    Attributes:
        gram: `[2, n + 1, n + 1]`, sum of x x^T, with x the n features and a 1 for the bias.
        cross: `[2, n + 1, width]`, sum of x r^T, with r the part of the target that the present map leaves.
        square: `[2, width]`, sum of r^2.
    """

    gram: Any
    cross: Any
    square: Any

    @property
    def tokens(self) -> int:
        """Number of tokens of both halves."""
        return round(float(self.gram[:, -1, -1].sum()))


class Change(NamedTuple):
    """Change of a linear map.

    Attributes:
        weight: `[n, width]`, 0 in rows of removed features.
        bias: `[width]`.
    """

    weight: np.ndarray
    bias: np.ndarray


class Refit(NamedTuple):
    """Result of `refit`.

    Attributes:
        change: change of the map, solved on both halves.
        ridge: chosen ridge.
        held_out: squared error after the change over that before, on examples that it was not solved on.
        unknowns: number of unknowns of each output.
    """

    change: Change
    ridge: float
    held_out: float
    unknowns: int

    @property
    def helps(self) -> bool:
        """Whether the change lowers the error on held-out examples."""
        return self.held_out < 1.0


def refit(
    sums: RefitSums, kept: np.ndarray, *, bias: bool, scale: np.ndarray, ridges: Sequence[float] = RIDGES
) -> Refit:
    """Return the change D of a linear map W, b by ridge regression.

        sum over tokens || x_kept D_W + D_b - r ||^2 + ridge * s || D_W ||^2,   r = t - x_kept W - b

    This is || x_kept W' + b' - t ||^2 + ridge * s || W' - W ||^2 for W' = W + D_W. s is the sum of squares of a kept
    feature (about its mean if there is a bias), averaged over the features. The bias is free.

    The ridge is the one of `ridges` with the least error on the half that it was not solved on, in two folds; the
    weight of the penalty against a token is then kept for the solution on both halves.

    Args:
        sums: sums over the calibration tokens.
        kept: `[n]` bool, features that still exist.
        bias: whether the map has a bias to change.
        scale: `[width]`, weight of each output in the held-out error.
        ridges: ridges to choose from.
    """
    halves = [RefitSums(*(array[half : half + 1].sum(axis=0) for array in sums)) for half in (0, 1)]
    before = max(sum(_error(half, None, scale) for half in halves), 1e-300)
    errors = [
        sum(_error(other, _solve(half, kept, bias, ridge), scale) for half, other in (halves, halves[::-1]))
        for ridge in ridges
    ]
    best = int(np.argmin(errors))
    both = RefitSums(*(array.sum(axis=0) for array in sums))
    # The sums are over twice as many tokens as those the ridge was chosen for.
    change = _solve(both, kept, bias, ridges[best] / 2.0)
    return Refit(change, ridges[best], errors[best] / before, int(kept.sum()) + bias)


def _solve(sums: RefitSums, kept: np.ndarray, bias: bool, ridge: float) -> Change:
    """Return the change that solves the equations of these sums."""
    index = np.flatnonzero(kept)
    gram, cross = sums.gram[np.ix_(index, index)], sums.cross[index]
    tokens = max(float(sums.gram[-1, -1]), 1.0)
    mean = sums.gram[index, -1] / tokens
    if bias:
        gram = gram - tokens * np.outer(mean, mean)
        cross = cross - np.outer(mean, sums.cross[-1])
    penalty = max(ridge * float(np.trace(gram)) / max(len(index), 1), 1e-30)
    solved = np.linalg.solve(gram + penalty * np.eye(len(index)), cross)
    weight = np.zeros((len(kept), cross.shape[1]))
    weight[index] = solved
    return Change(weight, sums.cross[-1] / tokens - mean @ solved if bias else np.zeros(cross.shape[1]))


def _error(sums: RefitSums, change: Change | None, scale: np.ndarray) -> float:
    """Return the squared error over these tokens after a change; None is no change."""
    square = np.array(sums.square)
    if change is not None:
        whole = np.concatenate([change.weight, change.bias[None]])
        square += (whole * (sums.gram @ whole - 2.0 * sums.cross)).sum(axis=0)
    return float(np.maximum(square, 0.0) @ np.square(scale))
