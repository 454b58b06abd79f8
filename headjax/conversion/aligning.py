"""Generalised Procrustes: rotations that turn heads onto each other, and commute with rotary embeddings."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from headjax.nn.rotary import Rotary

SWEEPS = 30
"""Largest number of rounds."""
SETTLED = 1e-4
"""Change of the rotations' entries below which the rounds end."""


def nearest_rotation(inner: np.ndarray, rotary: Rotary | None) -> np.ndarray:
    """Return the R that minimise ||X R - Y||, of products X^T Y `[..., dim, dim]` (Schoenemann 1966).

    Without rotary embeddings that is U V^T of X^T Y = U diag(s) V^T. Pairs of dimensions that those turn rotate each by
    one angle, the dimensions that stay freely among themselves.
    """
    if rotary is None:
        left, _, right = np.linalg.svd(inner)
        return left @ right
    turning = inner.shape[-1] if rotary.dim is None else rotary.dim
    first, second = (np.asarray(index) for index in rotary.split(jnp.arange(turning)))
    sin = inner[..., first, second] - inner[..., second, first]
    angle = np.arctan2(sin, inner[..., first, first] + inner[..., second, second])
    rotation = np.zeros_like(inner)
    rotation[..., first, first] = rotation[..., second, second] = np.cos(angle)
    rotation[..., first, second], rotation[..., second, first] = np.sin(angle), -np.sin(angle)
    rotation[..., turning:, turning:] = nearest_rotation(inner[..., turning:, turning:], None)
    return rotation


def align(heads: np.ndarray, rotary: Rotary | None) -> np.ndarray:
    """Return the rotations `[heads, dim, dim]` of X `[rows, heads, dim]` that bring all nearest to their mean."""
    # minimise  sum_h ||X_h R_h - mean_k X_k R_k||^2: each in turn is aligned to the sum of the others (ten Berge 1977),
    # which never raises the sum; at first all are aligned to the first one.
    inner = products(heads)
    rotations = nearest_rotation(inner[:, 0], rotary)
    for _ in range(SWEEPS):
        before = rotations.copy()
        for head in range(len(inner)):
            onto = np.einsum("kij,kjl->il", inner[head], rotations) - inner[head, head] @ rotations[head]
            rotations[head] = nearest_rotation(onto, rotary)
        if np.abs(rotations - before).max() < SETTLED:
            break
    return rotations


def aligned_distances(heads: np.ndarray, rotary: Rotary | None) -> np.ndarray:
    """Return min over R of ||X_i R - X_j||^2 for X `[rows, heads, dim]`, relative to the mean ||X||^2."""
    inner = products(heads)
    return relative_distances((nearest_rotation(inner, rotary) * inner).sum(axis=(2, 3)))


def distances(heads: np.ndarray) -> np.ndarray:
    """Return ||X_i - X_j||^2 for X `[rows, heads, dim]`, relative to the mean ||X||^2, `[heads, heads]`."""
    return relative_distances(np.tensordot(heads, heads, ((0, 2), (0, 2))))


def relative_distances(inner: np.ndarray) -> np.ndarray:
    """Return <X_i, X_i> + <X_j, X_j> - 2 <X_i, X_j> over the mean of the first, of inner products."""
    size = np.diagonal(inner)
    return (size[:, None] + size - 2.0 * inner) / max(float(size.mean()), 1e-30)


def products(heads: np.ndarray) -> np.ndarray:
    """Return X_i^T X_j `[heads, heads, dim, dim]`."""
    return np.einsum("rhi,rkj->hkij", heads, heads, optimize=True)
