"""Positions added to embeddings, and positions that bias logits."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.models.embeddings import RelativeBuckets, Sinusoidal
from tests.closeness import assert_close


def test_t5_buckets():
    """Buckets 0 to 3 for distances 0 to 3 back, then geometric; the other half for keys after the query."""
    bias = RelativeBuckets(num_heads=2, buckets=16, max_distance=32)
    distances = jnp.asarray([0, -1, -3, -4, -6, -8, -15, -31, -100, 1, 3, 4, 100])
    np.testing.assert_array_equal(bias.bucket(distances), [0, 1, 3, 4, 4, 5, 6, 7, 7, 9, 11, 12, 15])
    causal = dataclasses.replace(bias, bidirectional=False)
    np.testing.assert_array_equal(causal.bucket(jnp.asarray([5, 0, -7, -8, -100])), [0, 0, 7, 8, 15])


@pytest.mark.parametrize("endpoint, steps", [(False, 4), (True, 3)])
def test_sinusoidal_positions(endpoint, steps):
    table = Sinusoidal(endpoint=endpoint)(jnp.arange(6)[None], 8, None)[0]
    rates = 10000.0 ** (-np.arange(4) / steps)
    angles = np.arange(6)[:, None] * rates[None]
    assert_close(table, np.concatenate([np.sin(angles), np.cos(angles)], axis=1), sums=1, scale=angles.max())
