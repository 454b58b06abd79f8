"""Maps into heads and out of them, against einsums."""

from __future__ import annotations

import numpy as np

from headjax.attention.projections import into_heads, out_of_heads
from tests.closeness import assert_close

BATCH, LENGTH, WIDTH, HEADS, SIZE = 2, 3, 8, 2, 5


def normal(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def test_into_heads():
    x, weight, bias = normal(BATCH, LENGTH, WIDTH), normal(WIDTH, HEADS, SIZE), normal(HEADS, SIZE)
    expected = np.einsum("bqw,whd->bqhd", x, weight) + bias[None, None]
    assert_close(into_heads(x, weight, bias), expected, sums=WIDTH + 1)


def test_out_of_heads():
    context, weight, bias = normal(BATCH, LENGTH, HEADS, SIZE), normal(HEADS, SIZE, WIDTH), normal(WIDTH)
    expected = np.einsum("bqhd,hdw->bqw", context, weight) + bias[None, None]
    assert_close(out_of_heads(context, weight, bias), expected, sums=HEADS * SIZE + 1)
