"""Least squares from sums of products: a linear map refitted, with a ridge chosen on held-out examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from headjax.core.programs import one_blas_thread

DAMPING = 1e-4
"""Share of the mean square of a feature that is added to the second moments, so that they have an inverse."""

RIDGES = (1e-4, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Ridges to choose from, as shares of the mean square of a feature."""

LARGE = 1024
"""Features from which on ridges are told apart in float32, in half of the time."""


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
    tried from the middle one on in the direction in which the error falls, up to the first that is worse; of `LARGE`
    features and more in float32, which tells ridges apart. The weight of the penalty against a token is then kept for
    the solution on both halves.
    """
    if not kept.all():
        index = np.append(np.flatnonzero(kept), len(kept))
        sums = RefitSums(sums.gram[:, index[:, None], index], sums.cross[:, index], sums.square)
    dtype = np.float32 if len(sums.gram[0]) > LARGE else np.float64
    halves = [_Equations.of(gram, cross, bias, dtype) for gram, cross in zip(sums.gram, sums.cross, strict=True)]
    squares = np.square(scale)
    before = max(float(sums.square.sum(axis=0) @ squares), 1e-300)

    def held_out(ridge: float) -> float:
        rise = np.zeros(len(scale))
        for half, gram, cross in zip(halves, sums.gram[::-1], sums.cross[::-1], strict=True):
            change = half.solved(ridge)
            rise += (change * (np.asarray(gram, dtype) @ change - 2.0 * cross)).sum(axis=0, dtype=np.float64)
        return max(1.0 + float(rise @ squares) / before, 0.0)

    with one_blas_thread():
        ridge, error = _least(held_out, ridges)
        # The sums are over twice as many tokens as those the ridge was chosen for.
        both = _Equations.of(sums.gram.sum(axis=0), sums.cross.sum(axis=0), bias, np.float64)
        found = both.solved(ridge / 2.0)
    weight = np.zeros((len(kept), len(scale)))
    weight[kept] = found[:-1]
    return Refit(Change(weight, found[-1]), ridge, error, int(kept.sum()) + bias)


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
    inverse, left, removed = damped_inverse(moments), np.arange(len(moments)), []
    for size in np.diff(np.round(np.linspace(0, count, min(steps, count) + 1)).astype(int)):
        costs = np.square(weight).sum(axis=1) / np.maximum(np.diag(inverse), 1e-300)
        group = np.argsort(costs, kind="stable")[:size]
        removed.append(left[group])
        inverse, weight = without_features(inverse, weight, group)
        # Features from the end move to the places of removed ones, so that no large array is copied.
        end = len(left) - size
        moved, holes = np.setdiff1d(np.arange(end, len(left)), group), group[group < end]
        for array in (left, weight, inverse, inverse.T):
            array[holes] = array[moved]
        left, weight, inverse = left[:end], weight[:end], inverse[:end, :end]
    return np.concatenate(removed) if removed else np.zeros(0, int)


Positions = tuple[int, ...]
"""Positions of the heads of a layer that go together."""


class Removals(NamedTuple):
    """Removal of a layer's heads one after another, or group after group."""

    order: tuple[Positions, ...]
    errors: np.ndarray  # [removals + 1], mean squared error of the layer's output after 0, 1, ... removals


def layer_removals(moments: np.ndarray, output: np.ndarray, groups: Sequence[Positions] | None = None) -> Removals:
    """Return the greedy removal of all heads of a layer, each time the group of least cost per head.

    The cost of a group is tr(W_S^T ((H^-1)_SS)^-1 W_S) (ZipLM, arXiv 2302.04089), the mean squared error of the layer's
    output once the other heads have been refitted. W is `output`, `[heads, value_dim, width]`.
    """
    inverse, (heads, size, width) = damped_inverse(moments), output.shape
    left = [(head,) for head in range(heads)] if groups is None else list(groups)
    order, errors, weight = list[Positions](), [0.0], output.reshape(-1, width)
    while left:
        costs = np.array([_removal_cost(inverse, weight, rows_of(group, size)) for group in left])
        best = int(np.argmin(costs / np.array(list(map(len, left)))))
        order.append(left.pop(best))
        errors.append(errors[-1] + max(float(costs[best]), 0.0))
        inverse, weight = without_features(inverse, weight, rows_of(order[-1], size))
    return Removals(tuple(order), np.asarray(errors))


def _removal_cost(inverse: np.ndarray, weight: np.ndarray, rows: np.ndarray) -> float:
    return float((weight[rows] * np.linalg.solve(inverse[np.ix_(rows, rows)], weight[rows])).sum())


def rows_of(group: Positions, size: int) -> np.ndarray:
    """Return the features that belong to these heads, of `size` features each."""
    rows: np.ndarray = (np.asarray(group)[:, None] * size + np.arange(size)[None, :]).ravel()
    return rows


def without_features(inverse: np.ndarray, weight: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return H^-1 and W after the removal of features, the others refitted; the removed rows and columns become 0.

    W <- W - H^-1_:S ((H^-1)_SS)^-1 W_S, and H^-1 likewise, which is the inverse of H without S (Schur complement).
    """
    solved = np.linalg.solve(inverse[np.ix_(rows, rows)], np.concatenate([weight[rows], inverse[rows]], axis=1))
    change = inverse[:, rows] @ solved  # becomes the result, as arrays of this size cost time to allocate
    parts = change[:, : weight.shape[1]], change[:, weight.shape[1] :]
    weight, inverse = np.subtract(weight, parts[0], out=parts[0]), np.subtract(inverse, parts[1], out=parts[1])
    weight[rows], inverse[rows], inverse[:, rows] = 0.0, 0.0, 0.0
    return inverse, weight


def damped_inverse(moments: np.ndarray) -> np.ndarray:
    """Return the inverse of second moments with `DAMPING` of their mean on the diagonal."""
    from scipy.linalg import lapack

    damped = moments + max(DAMPING * float(np.trace(moments)) / len(moments), 1e-12) * np.eye(len(moments))
    factor, failed = lapack.dpotrf(damped, lower=1, clean=1)
    if failed:  # rounding made it indefinite
        general: np.ndarray = np.linalg.inv(damped)
        return general
    lower, _ = lapack.dpotri(factor, lower=1, overwrite_c=1)
    inverse = lower + lower.T
    inverse.flat[:: len(inverse) + 1] *= 0.5
    return inverse


def centred(gram: np.ndarray, bias: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the second moments of the features about the mean that a bias takes up (0 without one), and that mean."""
    tokens = max(float(gram[-1, -1]), 1.0)
    mean = gram[-1, :-1] / tokens * bias
    return gram[:-1, :-1] / tokens - np.outer(mean, mean), mean


def without_rows(sums: RefitSums, weight: np.ndarray, rows: np.ndarray) -> RefitSums:
    """Return the sums once rows of the present map are 0: the residual r grows by x_S W_S."""
    lost = weight[rows]
    cross = sums.cross + sums.gram[:, :, rows] @ lost
    return RefitSums(sums.gram, cross, sums.square + (lost * (sums.cross + cross)[:, rows]).sum(axis=1))


class _Equations(NamedTuple):
    """Normal equations of some tokens, about the mean of the features where a bias takes that up."""

    matrix: np.ndarray
    right: np.ndarray
    mean: np.ndarray
    bias: np.ndarray  # of a change of weights 0

    @classmethod
    def of(cls, gram: np.ndarray, cross: np.ndarray, bias: bool, dtype: Any) -> _Equations:
        """Return the equations of these sums."""
        tokens = max(float(gram[-1, -1]), 1.0)
        mean = gram[-1, :-1] / tokens * bias
        matrix, right = gram[:-1, :-1] - tokens * np.outer(mean, mean), cross[:-1] - np.outer(mean, cross[-1])
        return cls(*(part.astype(dtype) for part in (matrix, right, mean, cross[-1:] / tokens * bias)))

    def solved(self, ridge: float) -> np.ndarray:
        """Return the change that solves the equations, `[n + 1, outputs]`, the bias in the last row."""
        from scipy import linalg

        matrix, size = self.matrix.copy(), len(self.matrix)
        matrix.flat[:: size + 1] += max(ridge * float(np.trace(matrix)) / max(size, 1), 1e-30)
        try:
            factor = linalg.cho_factor(matrix, lower=True, check_finite=False)
            change = linalg.cho_solve(factor, self.right, check_finite=False)
        except linalg.LinAlgError:  # rounding made it indefinite
            change = np.linalg.solve(matrix, self.right)
        return np.concatenate([change, self.bias - self.mean @ change])
