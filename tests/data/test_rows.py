from __future__ import annotations

import numpy as np
import pytest

from headjax.data.rows import Row, RowSource, chunks, fingerprint, weight

ROWS = [Row(f"file: line {i}", {"text": "x" * (i + 1), "label": i}) for i in range(5)]


def test_chunks_are_consecutive_rows_of_about_one_size():
    assert [weight(row) for row in ROWS] == [2, 3, 4, 5, 6]
    assert [len(chunk) for chunk in chunks(ROWS, 5)] == [2, 2, 1]
    assert [row for chunk in chunks(ROWS, 5) for row in chunk] == ROWS
    assert weight(Row("image", {"image": np.zeros((4, 4, 3), np.uint8)})) == 48


def test_the_fingerprint_is_that_of_names_and_values():
    elsewhere = [row._replace(place="elsewhere") for row in ROWS]
    assert fingerprint(elsewhere) == fingerprint(ROWS)
    assert fingerprint(ROWS[:4]) != fingerprint(ROWS)
    assert fingerprint([Row("", {"label": 1})]) != fingerprint([Row("", {"number": 1})])


def test_rows_are_read_again_and_by_number():
    source = RowSource.of(ROWS)
    assert list(source.rows()) == list(source.rows()) == ROWS
    assert (source.count, source.at(3)) == (5, ROWS[3])
    numbered = RowSource.by_number(ROWS.__getitem__, 2)
    assert list(numbered.rows()) == ROWS[:2]
    with pytest.raises(TypeError, match="read in their order"):
        RowSource(lambda: ROWS).at(0)
