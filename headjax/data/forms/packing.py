"""Several short examples in one row: which go together, and how a row says where each begins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

OPEN_ROWS = 32
"""Rows that are filled at the same time; the fullest is written when another is needed."""


def pack(sizes: np.ndarray, capacity: int) -> list[list[int]]:
    """Groups examples so that none of a group's sums exceeds the capacity: each goes into the first row with room.

    Args:
        sizes: `[examples, sides]` tokens of each side (source and target), none above the capacity.
        capacity: tokens of a row on each side.

    Returns:
        The examples of each row, every example once.
    """
    done: list[list[int]] = []
    rows: list[list[int]] = []
    room = np.zeros((0, sizes.shape[1]), np.int64)
    for number, size in enumerate(sizes):
        fitting = np.flatnonzero((room >= size).all(axis=1))
        if fitting.size:
            place = int(fitting[0])
        else:
            if len(rows) == OPEN_ROWS:
                fullest = int(room.sum(axis=1).argmin())
                done.append(rows.pop(fullest))
                room = np.delete(room, fullest, axis=0)
            place = len(rows)
            rows.append([])
            room = np.vstack([room, np.full((1, sizes.shape[1]), capacity)])
        rows[place].append(number)
        room[place] -= size
    return done + rows


def segments(lengths: Sequence[int] | np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the examples in a packed row and positions in them, int32 `[length]` each.

    Args:
        lengths: tokens of each example, in order.
        length: of the row. What is left over is padding, of segment 0; the first example is segment 1.

    Returns:
        `segment_ids`, and `position_ids` that start at 0 in every example.
    """
    lengths = np.asarray(lengths, np.int64)
    numbers = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    segment_ids, position_ids = np.zeros(length, np.int32), np.zeros(length, np.int32)
    segment_ids[: len(numbers)] = numbers
    position_ids[: len(numbers)] = np.arange(len(numbers)) - starts
    return segment_ids, position_ids
