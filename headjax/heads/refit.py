"""Least squares from sums of products: a linear map refitted, with a ridge chosen on held-out examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from headjax.core.blas import one_blas_thread

DAMPING = 1e-4
"""Share of the mean square of a feature that is added to the second moments, so that they have an inverse."""

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

    The ridge is the one of `ridges` with the least error on the half that it was not solved on, in two folds. They are
    tried from the middle one on in the direction in which the error falls, up to the first that is worse. The weight
    of the penalty against a token is then kept for the solution on both halves.
    """
    halves = [RefitSums(*(array[half : half + 1].sum(axis=0) for array in sums)) for half in (0, 1)]
    folds = (halves, halves[::-1])
    with one_blas_thread():
        ridge, error = _least(
            lambda ridge: sum(_error(other, _solve(half, kept, bias, ridge), scale) for half, other in folds), ridges
        )
        both = RefitSums(*(array.sum(axis=0) for array in sums))
        # The sums are over twice as many tokens as those the ridge was chosen for.
        change = _solve(both, kept, bias, ridge / 2.0)
    before = max(sum(_error(half, None, scale) for half in halves), 1e-300)
    return Refit(change, ridge, error / before, int(kept.sum()) + bias)


def _least(error: Callable[[float], float], ridges: Sequence[float]) -> tuple[float, float]:
    """Return the ridge where the error stops falling, from the middle one on, and its error."""
    best = len(ridges) // 2
    errors = {best: error(ridges[best])}
    for step in (1, -1):
        while 0 <= best + step < len(ridges) and best + step not in errors:
            errors[best + step] = error(ridges[best + step])
            if errors[best + step] >= errors[best]:
                break
            best += step
    return ridges[best], errors[best]


def least_needed(moments: np.ndarray, weight: np.ndarray, count: int, steps: int = 64) -> np.ndarray:
    """Return the features whose removal costs least once the others have been refitted, in the order of removal.

    Feature i costs ||W_i||^2 / (H^-1)_ii (optimal brain surgery, Hassibi and Stork 1993). They are removed greedily in
    at most `steps` groups, with H^-1 and W brought up to date after each.
    """
    inverse, left, removed = damped_inverse(moments), np.ones(len(moments), bool), []
    for size in np.diff(np.round(np.linspace(0, count, min(steps, count) + 1)).astype(int)):
        costs = np.square(weight).sum(axis=1) / np.maximum(np.diag(inverse), 1e-300)
        group = np.argsort(np.where(left, costs, np.inf), kind="stable")[:size]
        inverse, weight = without_features(inverse, weight, group)
        left[group] = False
        removed.append(group)
    return np.concatenate(removed) if removed else np.zeros(0, int)


def without_features(inverse: np.ndarray, weight: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return H^-1 and W after the removal of features, the others refitted; the removed rows and columns become 0.

    W <- W - H^-1_:S ((H^-1)_SS)^-1 W_S, and H^-1 likewise, which is the inverse of H without S (Schur complement).
    """
    solved = np.linalg.solve(inverse[np.ix_(rows, rows)], np.concatenate([weight[rows], inverse[rows]], axis=1))
    change = inverse[:, rows] @ solved
    weight, inverse = weight - change[:, : weight.shape[1]], inverse - change[:, weight.shape[1] :]
    weight[rows], inverse[rows], inverse[:, rows] = 0.0, 0.0, 0.0
    return inverse, weight


def damped_inverse(moments: np.ndarray) -> np.ndarray:
    """Return the inverse of second moments with `DAMPING` of their mean on the diagonal."""
    damping = max(DAMPING * float(np.trace(moments)) / len(moments), 1e-12)
    inverse: np.ndarray = np.linalg.inv(moments + damping * np.eye(len(moments)))
    return inverse


def centred(sums: RefitSums, bias: bool) -> np.ndarray:
    """Return the second moments of the features, about their mean where a bias takes that up."""
    both = sums.gram.sum(axis=0)
    tokens = max(float(both[-1, -1]), 1.0)
    mean = both[:-1, -1] / tokens
    moments: np.ndarray = both[:-1, :-1] / tokens - (np.outer(mean, mean) if bias else 0.0)
    return moments


def without_rows(sums: RefitSums, weight: np.ndarray, rows: np.ndarray) -> RefitSums:
    """Return the sums once rows of the present map are 0: the residual r grows by x_S W_S."""
    lost = weight[rows]
    cross = sums.cross + sums.gram[:, :, rows] @ lost
    grown = 2.0 * sums.cross[:, rows] + sums.gram[:, rows][:, :, rows] @ lost
    return RefitSums(sums.gram, cross, sums.square + (lost * grown).sum(axis=1))


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
    gram.flat[:: len(index) + 1] += penalty
    solved = _solve_definite(gram, cross)
    weight = np.zeros((len(kept), cross.shape[1]))
    weight[index] = solved
    return Change(weight, sums.cross[-1] / tokens - mean @ solved if bias else np.zeros(cross.shape[1]))


def _solve_definite(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return X of A X = B for a positive definite A, by Cholesky unless rounding made A indefinite."""
    from scipy import linalg

    try:
        solved: np.ndarray = linalg.cho_solve(linalg.cho_factor(matrix, lower=True, check_finite=False), right)
    except linalg.LinAlgError:
        solved = np.linalg.solve(matrix, right)
    return solved


def _error(sums: RefitSums, change: Change | None, scale: np.ndarray) -> float:
    """Return the squared error over these tokens after a change; None is no change."""
    square = np.array(sums.square)
    if change is not None:
        whole = np.concatenate([change.weight, change.bias[None]])
        square += (whole * (sums.gram @ whole - 2.0 * sums.cross)).sum(axis=0)
    return float(np.maximum(square, 0.0) @ np.square(scale))
