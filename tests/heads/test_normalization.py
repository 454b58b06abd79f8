from __future__ import annotations

import math

import hypothesis
import hypothesis.strategies as st
import pytest

from headjax.heads.head_id import HeadId
from headjax.heads.normalization import hies, min_max, normalize_layers

HEADS = [HeadId(stack, i, h) for stack in ("encoder", "cross") for i in range(2) for h in range(3)]


@hypothesis.given(st.lists(st.floats(1e-3, 1e3), min_size=12, max_size=12))
def test_squares_of_a_layer_sum_to_one(numbers):
    values = dict(zip(HEADS, numbers, strict=True))
    normalized = normalize_layers(values)
    assert list(normalized) == HEADS
    for stack in ("encoder", "cross"):
        for layer in range(2):
            squares = [normalized[head] ** 2 for head in HEADS if (head.stack, head.layer) == (stack, layer)]
            assert math.isclose(sum(squares), 1.0, rel_tol=1e-9)


def test_a_layer_of_zeros_stays_zero():
    assert set(normalize_layers(dict.fromkeys(HEADS, 0.0)).values()) == {0.0}


def test_min_max_spans_all_heads():
    values = {HEADS[0]: 2.0, HEADS[7]: 6.0, HEADS[3]: 3.0}
    assert min_max(values) == {HEADS[0]: 0.0, HEADS[7]: 1.0, HEADS[3]: 0.25}
    assert set(min_max(dict.fromkeys(HEADS, 5.0)).values()) == {0.0}
    assert min_max({}) == {}


def test_hies_by_hand():
    importance = {HEADS[0]: 0.0, HEADS[1]: 2.0, HEADS[2]: 1.0}
    entropy = {HEADS[0]: 0.5, HEADS[1]: 0.9, HEADS[2]: 0.1}
    got = hies(importance, entropy, alpha=0.25)
    assert got == pytest.approx({HEADS[0]: 0.75 * 0.5, HEADS[1]: 0.25, HEADS[2]: 0.25 * 0.5 + 0.75})
