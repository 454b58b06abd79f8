"""Splash attention, interpreted on CPUs, against the reference; test_compile.py compiles it for a TPU."""

from __future__ import annotations

import dataclasses

from headjax.attention import attend
from headjax.attention.kernels import splash
from tests.attention.kernels.calls import inputs, masks
from tests.closeness import assert_close

LENGTH = 256


def test_equals_the_reference():
    query, key, value = inputs(length=LENGTH, value_dim=5, key_heads=1)
    packed, padded = masks(LENGTH)["causal and packed"], masks(LENGTH)["causal and padding"]
    # Each segment keeps its first key, so that every query sees one.
    mask = dataclasses.replace(packed, keys=padded.keys.at[:, LENGTH // 2].set(True))
    actual = splash.attend(
        query, key, value, scale=0.4, mask=mask, bias=None, dropout=None, across_heads=None, interpret=True
    )
    expected = attend(query, key, value, scale=0.4, mask=mask, implementation="einsum")
    assert_close(actual.context, expected.context, sums=8 + 2 * LENGTH)
    assert actual.probabilities is None
