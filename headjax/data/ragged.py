"""Examples of different lengths as a source: each is padded when it is read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

MULTIPLE = 8
"""Lengths that examples are padded to are multiples of this, for the sake of vector units."""


def bucket_ends(bounds: Sequence[int], length: int) -> list[int]:
    """The bounds below `length`, and `length`, ascending."""
    return sorted({bound for bound in bounds if bound < length} | {length})


class RaggedRows:
    """Examples of different lengths, padded to one length.

    Besides its columns an example has an `attention_mask`, 0 at padding.

    Args:
        columns: for each name an array `[tokens]` an example; `input_ids` is among them.
        targets: for each name `[examples]`.
        padding_id: fills `input_ids`; other columns are filled with 0.
        length: what examples are padded to; None is the longest one, rounded up to a multiple of `MULTIPLE`.
        limit: most that rounding may reach (the positions a model has); None is no limit.
    """

    def __init__(
        self,
        columns: Mapping[str, Sequence[np.ndarray]],
        targets: Mapping[str, np.ndarray],
        padding_id: int = 0,
        length: int | None = None,
        limit: int | None = None,
    ) -> None:
        self.columns, self.targets, self.padding_id = columns, targets, padding_id
        self.lengths = np.asarray([len(ids) for ids in columns["input_ids"]])
        longest = int(self.lengths.max(initial=1))
        rounded = -(-longest // MULTIPLE) * MULTIPLE
        rounded = rounded if limit is None else max(min(rounded, limit), longest)
        self.length = rounded if length is None else length

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.padded(index, self.length)

    def padded(self, index: int, length: int) -> dict[str, np.ndarray]:
        """The example padded to another length, not below its own."""
        room = (0, length - int(self.lengths[index]))
        row = {name: np.pad(column[index], room) for name, column in self.columns.items()}
        row["attention_mask"] = np.pad(np.ones(self.lengths[index], np.int32), room)
        row["input_ids"] = np.where(row["attention_mask"] == 1, row["input_ids"], np.int32(self.padding_id))
        return row | {name: column[index] for name, column in self.targets.items()}

    def select(self, indices: np.ndarray, length: int | None = None) -> RaggedRows:
        """These examples, padded to another length."""
        columns = {name: [column[index] for index in indices] for name, column in self.columns.items()}
        targets = {name: column[indices] for name, column in self.targets.items()}
        return RaggedRows(columns, targets, self.padding_id, length)

    def buckets(self, bounds: Sequence[int]) -> list[RaggedRows]:
        """The examples by length, none empty: each group is padded to its own bound, the last to `length`."""
        ends = bucket_ends(bounds, self.length)
        number = np.searchsorted(ends, self.lengths)
        groups = [(np.flatnonzero(number == i), end) for i, end in enumerate(ends)]
        return [self.select(indices, end) for indices, end in groups if indices.size]

    @property
    def fingerprint(self) -> str:
        """Hash of all examples, 16 hexadecimal digits."""
        digest = hashlib.sha256(self.lengths.tobytes())
        for name in sorted(self.columns):
            digest.update(np.concatenate([*self.columns[name], np.zeros(0, np.int32)]).tobytes())
        for name in sorted(self.targets):
            digest.update(self.targets[name].tobytes())
        return digest.hexdigest()[:16]
