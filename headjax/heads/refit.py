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
    """Sums over the tokens of two halves of the examples: x are n features and a 1, r is what a map leaves to do."""

    gram: Any  # [2, n + 1, n + 1], sum of x x^T
    cross: Any  # [2, n + 1, width], sum of x r^T
    square: Any  # [2, width], sum of r^2

    @property
    def tokens(self) -> int:
        return round(float(self.gram[:, -1, -1].sum()))


class Change(NamedTuple):
    """Change of a linear map."""

    weight: np.ndarray  # [n, width], 0 in rows of removed features
    bias: np.ndarray  # [width]


class Refit(NamedTuple):
    """Result of `refit`."""

    change: Change  # solved on both halves
    ridge: float
    held_out: float  # squared error after the change over that before, on examples that it was not solved on
    unknowns: int  # of each output

    @property
    def helps(self) -> bool:
        return self.held_out < 1.0


def refit(
    sums: RefitSums,
    kept: np.ndarray,
    *,
    bias: bool,
    scale: np.ndarray,
    ridges: Sequence[float] = RIDGES,
    weight: np.ndarray | None = None,
) -> Refit:
    """Return the change D of a linear map W, b by ridge regression.

        sum over tokens || x_kept D_W + D_b - r ||^2 + ridge * s || D_W ||^2,   r = t - x_kept W - b

    This is || x_kept W' + b' - t ||^2 + ridge * s || W' - W ||^2 for W' = W + D_W. s is the sum of squares of a kept
    feature (about its mean if there is a bias), averaged over the features. The bias is free.

    The ridge is the one of `ridges` with the least error on the half that it was not solved on, in two folds. They are
    tried from the middle one on in the direction in which the error falls, up to the first that is worse; of `LARGE`
    features and more in float32, which tells ridges apart. The weight of the penalty against a token is then kept for
    the solution on both halves.

    With `weight`, the present map `[n, width]`, the sums are of r = t - x W - b with all features: what the others
    computed joins the target. Their rows of the change are 0 all the same.
    """
    if not kept.all():
        sums = _reduced(sums, kept, weight)
    dtype = np.float32 if len(sums.gram[0]) > LARGE else np.float64
    halves = [_Equations.of(gram, cross, bias, dtype) for gram, cross in zip(sums.gram, sums.cross, strict=True)]
    squares = np.square(scale)
    before = max(float(sums.square.sum(axis=0) @ squares), 1e-300)

    def held_out(ridge: float) -> float:
        one, other = (half.factored(ridge) for half in halves)
        changes = [half.solved(factor) for half, factor in zip(halves, (one, other), strict=True)]
        rise = halves[0].rise(one, changes[1]) + halves[1].rise(other, changes[0])
        return max(1.0 + float(rise @ squares) / before, 0.0)

    with one_blas_thread():
        ridge, error = _least(held_out, ridges)
        # The sums are over twice as many tokens as those the ridge was chosen for.
        both = _Equations.of(sums.gram.sum(axis=0), sums.cross.sum(axis=0), bias, np.float64)
        solved = both.solved(both.factored(ridge / 2.0))
    change = np.zeros((len(kept), len(scale)))
    change[kept] = solved[:-1]
    return Refit(Change(change, solved[-1]), ridge, error, int(kept.sum()) + bias)


def _reduced(sums: RefitSums, kept: np.ndarray, weight: np.ndarray | None) -> RefitSums:
    """Return the sums of the kept features; with the map that the others lose, the residual r grows by x_S W_S."""
    index, gone = np.append(np.flatnonzero(kept), len(kept)), np.flatnonzero(~kept)
    gram, cross, square = sums.gram[:, index[:, None], index], sums.cross[:, index], sums.square
    if weight is not None:
        lost = weight[gone]
        of_lost = sums.gram[:, gone[:, None], gone].sum(axis=0) @ lost
        of_lost += 2.0 * sums.cross[:, gone].sum(axis=0)
        cross = cross + sums.gram[:, index[:, None], gone] @ lost
        square = square + 0.5 * (lost * of_lost).sum(axis=0)  # read as a sum over both halves
    return RefitSums(gram, cross, square)


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
    at most `steps` groups. Removed features S take F F^T from H^-1, with F = H^-1_:S chol((H^-1)_SS)^-T, and F W_S
    likewise from W. Of H^-1 without them only the diagonal and the next group's columns are read, so F alone is kept.
    """
    from scipy import linalg

    inverse, weight = damped_inverse(moments), weight.copy()
    diagonal, left, removed = inverse.diagonal().copy(), np.arange(len(moments)), list[np.ndarray]()
    factor, done = np.empty((len(moments), count)), 0
    for size in np.diff(np.round(np.linspace(0, count, min(steps, count) + 1)).astype(int)):
        costs = np.square(weight).sum(axis=1) / np.maximum(diagonal, 1e-300)
        group = np.argsort(costs, kind="stable")[:size]
        removed.append(left[group])
        columns = inverse[left[:, None], left[group]] - factor[: len(left), :done] @ factor[group, :done].T
        root = linalg.cholesky(columns[group], lower=True, check_finite=False)
        solved = linalg.solve_triangular(
            root, np.concatenate([columns, weight[group].T]).T, lower=True, check_finite=False
        )
        new = solved[:, : len(left)].T
        factor[: len(left), done : done + size] = new
        weight -= new @ solved[:, len(left) :]
        diagonal -= np.square(new).sum(axis=1)
        # Features from the end move to the places of removed ones, so that no large array is copied.
        end, done = len(left) - size, done + size
        moved, holes = np.setdiff1d(np.arange(end, len(left)), group), group[group < end]
        for array in (left, weight, diagonal, factor[:, :done]):
            array[holes] = array[moved]
        left, weight, diagonal = left[:end], weight[:end], diagonal[:end]
    return np.concatenate(removed) if removed else np.zeros(0, int)


def nested_refits(
    moments: np.ndarray, weight: np.ndarray, order: np.ndarray, sizes: Sequence[int], penalty: float
) -> list[np.ndarray]:
    """Return the changes of a map that keeps the first k features of an order, refitted towards the same output.

        W'_K = (H_KK + penalty)^-1 (H W + penalty W)_K,   W'_S = 0

    One factorisation serves all sizes k. With H + penalty = L L^T in this order, the leading block of L factors the
    equations of the first k features, and forward substitution makes the leading rows of L^T W of their right side:

        W'_K = L_k^-T (L^T W)_k
    """
    from scipy import linalg
    from scipy.linalg import blas

    lower, _ = _factored(moments[order[:, None], order], penalty)
    right, changes = blas.dtrmm(1.0, lower, weight[order], lower=1, trans_a=1), []
    for size in sizes:
        change, block = -weight, lower[:size, :size]
        if size:
            change[order[:size]] += linalg.solve_triangular(
                block, right[:size], trans=1, lower=True, check_finite=False
            )
        changes.append(change)
    return changes


Positions = tuple[int, ...]
"""Positions of the heads of a layer that go together."""


class Removals(NamedTuple):
    """Removal of a layer's heads one after another, or group after group."""

    order: tuple[Positions, ...]
    errors: np.ndarray  # [removals + 1], mean squared error of the layer's output after 0, 1, ... removals


def layer_removals(moments: np.ndarray, output: np.ndarray, groups: Sequence[Positions]) -> Removals:
    """Return the greedy removal of all heads of a layer, each time the group of least cost per head.

    The cost of a group is tr(W_S^T ((H^-1)_SS)^-1 W_S) (ZipLM, arXiv 2302.04089), the mean squared error of the layer's
    output once the other heads have been refitted. W is `output`, `[heads, value_dim, width]`.
    """
    inverse, (_, size, width) = damped_inverse(moments), output.shape
    left = list(groups)
    order, errors, weight = list[Positions](), [0.0], output.reshape(-1, width)

    def cost(group: Positions) -> float:
        rows = rows_of(group, size)
        return float((weight[rows] * np.linalg.solve(inverse[np.ix_(rows, rows)], weight[rows])).sum())

    while left:
        costs = np.array(list(map(cost, left)))
        best = int(np.argmin(costs / np.array(list(map(len, left)))))
        order.append(left.pop(best))
        errors.append(errors[-1] + max(float(costs[best]), 0.0))
        inverse, weight = without_features(inverse, weight, rows_of(order[-1], size))
    return Removals(tuple(order), np.asarray(errors))


def rows_of(group: Sequence[int], size: int) -> np.ndarray:
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

    factor, _ = _factored(moments, max(DAMPING * float(np.trace(moments)) / len(moments), 1e-12))
    inverse: np.ndarray = lapack.dpotri(factor, lower=1, overwrite_c=1)[0]
    for start in range(0, len(inverse), 256):  # in blocks that a cache holds
        stop = start + 256
        inverse[start:stop, stop:] = inverse[stop:, start:stop].T
        inverse[start:stop, start:stop] += np.tril(inverse[start:stop, start:stop], -1).T
    return inverse


def _factored(matrix: np.ndarray, penalty: float) -> tuple[np.ndarray, float]:
    """Return the lower Cholesky factor of matrix + penalty, 0 above the diagonal, in Fortran's order; and the penalty.

    Where rounding has made the matrix indefinite, the penalty is raised until it is not.
    """
    from scipy import linalg

    (potrf,) = linalg.get_lapack_funcs(("potrf",), (matrix,))
    while True:
        damped = matrix.copy()
        damped.flat[:: len(damped) + 1] += penalty
        factor, failed = potrf(damped.T, lower=1, clean=1, overwrite_a=1)
        if not failed or not np.isfinite(np.trace(matrix)):
            return factor, penalty
        penalty *= 10.0


def centred(gram: np.ndarray, bias: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the second moments of the features about the mean that a bias takes up (0 without one), and that mean."""
    tokens = max(float(gram[-1, -1]), 1.0)
    mean, moments = gram[-1, :-1] / tokens * bias, gram[:-1, :-1] / tokens
    moments -= np.outer(mean, mean)
    return moments, mean


class _Equations(NamedTuple):
    """Normal equations of some tokens, about the mean of the features where a bias takes that up."""

    matrix: np.ndarray
    right: np.ndarray
    mean: np.ndarray
    bias: np.ndarray  # of a change of weights 0
    tokens: float

    @classmethod
    def of(cls, gram: np.ndarray, cross: np.ndarray, bias: bool, dtype: Any) -> _Equations:
        tokens = max(float(gram[-1, -1]), 1.0)
        mean = gram[-1, :-1] / tokens * bias
        matrix, right = gram[:-1, :-1] - np.outer(tokens * mean, mean), cross[:-1] - np.outer(mean, cross[-1])
        matrix, right, mean, lacking = (part.astype(dtype) for part in (matrix, right, mean, cross[-1] / tokens * bias))
        return cls(matrix, right, mean, lacking, tokens)

    def factored(self, ridge: float) -> tuple[np.ndarray, float]:
        """Return the lower factor of the matrix with a penalty on the weights, and the penalty."""
        return _factored(self.matrix, max(ridge * float(np.trace(self.matrix)) / max(len(self.matrix), 1), 1e-30))

    def solved(self, factor: tuple[np.ndarray, float]) -> np.ndarray:
        """Return the change that solves the equations, `[n + 1, outputs]`, the bias in the last row."""
        from scipy import linalg

        change = linalg.cho_solve((factor[0], True), self.right, check_finite=False)
        return np.concatenate([change, (self.bias - self.mean @ change)[None]])

    def rise(self, factor: tuple[np.ndarray, float], change: np.ndarray) -> np.ndarray:
        """Return by how much a change raises the squared error of these tokens, `[outputs]`.

        The square of x D about the mean is |L^T D|^2 less the penalty's |D|^2.
        """
        from scipy import linalg

        (lower, penalty), weight = factor, change[:-1]
        shift = self.mean @ weight + change[-1]  # of the mean output
        (trmm,) = linalg.get_blas_funcs(("trmm",), (lower, weight))
        rise = np.square(trmm(1.0, lower, weight, lower=1, trans_a=1))
        rise -= weight * (penalty * weight + 2.0 * self.right)
        about_mean: np.ndarray = rise.sum(axis=0, dtype=np.float64)
        return about_mean + self.tokens * shift * (shift - 2.0 * self.bias)
