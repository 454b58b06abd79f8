from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headjax.data.forms.language import pack, segments


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=120))
def test_every_example_is_in_one_row_that_it_fits(sizes):
    sizes = np.asarray(sizes)
    rows = pack(sizes, 9)
    assert sorted(number for row in rows for number in row) == list(range(len(sizes)))
    assert all((sizes[row].sum(axis=0) <= 9).all() for row in rows)


def test_rows_are_full():
    """Sentences of natural length leave next to nothing empty."""
    sizes = np.random.default_rng(0).integers(4, 60, size=(2000, 1))
    rows = pack(sizes, 256)
    assert sizes.sum() / (256 * len(rows)) > 0.95


def test_segments():
    segment_ids, position_ids = segments([2, 3], 7)
    assert segment_ids.tolist() == [1, 1, 2, 2, 2, 0, 0]
    assert position_ids.tolist() == [0, 1, 0, 1, 2, 0, 0]
    assert segment_ids.dtype == position_ids.dtype == np.int32
