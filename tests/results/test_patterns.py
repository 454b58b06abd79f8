"""Patterns of attention are fitted where theorem 1 of Bhojanapalli et al. (2020) says so, here of a few tokens."""

import jax
import numpy as np

from results.experiments.patterns import fitted, measure


def test_the_fit_is_the_attention_of_the_maps():
    shapes = [(1, 6, 3), (1, 6, 3), (1, 4, 6)]
    query, key, inputs = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes))
    logits = (inputs[0] @ query[0]) @ (inputs[0] @ key[0]).T / np.sqrt(3)
    np.testing.assert_allclose(fitted(query, key, inputs)[0], jax.nn.softmax(logits), atol=1e-6)


def test_heads_as_large_as_the_length_fit_and_small_ones_do_not():
    found = list(measure((1, 4), tokens=4, width=8, steps=1000))
    large, small = ([row.value for row in found if row.setting == f"pattern=soft,size={size}"] for size in (4, 1))
    assert max(large) < 1e-4
    assert min(small) > 1e-2
