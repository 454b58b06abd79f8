"""Rotations of heads onto each other."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headjax.conversion.sharing import generalised, orthogonal, pairwise
from tests import tiny
from tests.closeness import assert_close


@given(st.integers(0, 10_000))
def test_procrustes_undoes_a_rotation(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rotation = np.linalg.qr(generator.standard_normal((4, 4)))[0].astype(np.float32)
    matrix = jnp.asarray(generator.standard_normal((9, 4)), jnp.float32)
    assert_close(orthogonal(matrix, matrix @ rotation), rotation, sums=tiny.SUMS)


def test_generalised_procrustes_aligns_what_differs_by_rotations() -> None:
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((9, 4))
    turned = [matrix @ np.linalg.qr(generator.standard_normal((4, 4)))[0] for _ in range(3)]
    matrices = jnp.asarray(np.stack(turned), jnp.float32)
    rotations = generalised(matrices)
    aligned = np.einsum("nrd,nde->nre", matrices, rotations)
    assert_close(aligned, np.broadcast_to(aligned[:1], aligned.shape), sums=tiny.SUMS)
    identities = np.einsum("nde,ndf->nef", rotations, rotations)
    assert_close(identities, np.broadcast_to(np.eye(4), identities.shape), sums=tiny.SUMS)


def test_pairwise_rotations_turn_pairs_and_mix_the_rest() -> None:
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((9, 6)).astype(np.float32)
    rotation = np.zeros((6, 6))
    for angle, (i, j) in zip((0.3, -1.2), ((0, 2), (1, 3)), strict=True):
        rotation[[i, j], [i, j]] = np.cos(angle)
        rotation[i, j], rotation[j, i] = np.sin(angle), -np.sin(angle)
    rotation[4:, 4:] = np.linalg.qr(generator.standard_normal((2, 2)))[0]
    found = pairwise(((0, 2), (1, 3)))(jnp.asarray(matrix), jnp.asarray(matrix @ rotation, jnp.float32))
    assert_close(found, rotation, sums=tiny.SUMS)
