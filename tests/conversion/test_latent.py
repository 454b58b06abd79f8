"""The low-rank factorisation behind latent attention."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from headjax.conversion.latent import low_rank
from tests import tiny
from tests.closeness import assert_close


def test_low_rank_is_the_best_of_its_rank() -> None:
    matrix = np.random.default_rng(0).standard_normal((9, 20)).astype(np.float32)
    left, right = low_rank(jnp.asarray(matrix), 4)
    values = np.linalg.svd(matrix, compute_uv=False)
    assert_close(np.linalg.norm(matrix - left @ right), np.sqrt(np.square(values[4:]).sum()), sums=tiny.SUMS)
    left, right = low_rank(jnp.asarray(matrix), 12)
    assert left.shape == (9, 12)
    assert_close(left @ right, matrix, sums=tiny.SUMS)
