"""`Mask.array` against its definition, entry by entry."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention import Mask


def test_nothing_masked_is_no_array():
    assert Mask().array(3, 4) is None


@pytest.mark.parametrize("offset", [None, 2, [0, 3]])
def test_causal_with_an_offset(offset):
    """Query i stands at position i + offset among the keys."""
    mask = Mask(causal=True, query_offset=None if offset is None else jnp.asarray(offset))
    allowed = np.asarray(mask.array(3, 5))
    offsets = np.ravel([0] if offset is None else offset)
    assert allowed.shape == (len(offsets), 1, 3, 5)
    for b, start in enumerate(offsets):
        for i in range(3):
            for j in range(5):
                assert allowed[b, 0, i, j] == (j <= i + start)


def test_conditions_hold_together():
    present = np.array([[1, 1, 1, 1], [1, 0, 1, 0]])
    segments = np.array([[1, 1, 2, 2], [1, 1, 1, 2]])
    mask = Mask(
        causal=True,
        keys=jnp.asarray(present),
        query_segments=jnp.asarray(segments),
        key_segments=jnp.asarray(segments),
    )
    allowed = np.asarray(mask.array(4, 4))
    assert allowed.shape == (2, 1, 4, 4)
    assert allowed.dtype == bool
    for b in range(2):
        for i in range(4):
            for j in range(4):
                expected = j <= i and present[b, j] == 1 and segments[b, i] == segments[b, j]
                assert allowed[b, 0, i, j] == expected


def test_segments_of_queries_and_keys_may_differ():
    mask = Mask(query_segments=jnp.asarray([[7, 8]]), key_segments=jnp.asarray([[8, 7, 7]]))
    assert np.asarray(mask.array(2, 3))[0, 0].tolist() == [[False, True, True], [True, False, False]]


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_hides_keys_that_are_far(causal):
    allowed = np.asarray(Mask(causal=causal, window=2, query_offset=jnp.asarray([0, 3])).array(3, 6))
    for b, start in enumerate([0, 3]):
        for i in range(3):
            for j in range(6):
                assert allowed[b, 0, i, j] == (abs(i + start - j) < 2 and (j <= i + start or not causal))


def test_a_window_measures_distances_between_positions_where_they_are_given():
    """Padding between two tokens takes an index and no position."""
    positions = jnp.asarray([[0, 0, 1, 2]])
    mask = Mask(causal=True, window=2, query_positions=positions, key_positions=positions)
    rows = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1]]
    assert np.asarray(mask.array(4, 4))[0, 0].astype(int).tolist() == rows


def test_passes_through_jit_with_causality_static():
    mask = Mask(causal=True, keys=jnp.ones((1, 3), bool))
    leaves, structure = jax.tree.flatten(mask)
    assert len(leaves) == 1
    assert structure != jax.tree.structure(Mask(keys=jnp.ones((1, 3), bool)))
    jitted = jax.jit(lambda mask: mask.array(3, 3))(mask)
    np.testing.assert_array_equal(jitted, mask.array(3, 3))
