"""Records as examples, padded when read."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence

import numpy as np

from headjax.data.prepared.form import Records, padded
from headjax.data.ragged import MULTIPLE


@dataclasses.dataclass(frozen=True)
class Padded(abc.ABC):
    """Records as examples that are padded when they are read, for `train_iterator` and `LengthBuckets`.

    Attributes:
        records: the records.
        lengths: `[records]` their tokens.
        padding_id: fills `input_ids`.
    """

    records: Records
    lengths: np.ndarray
    padding_id: int

    @property
    @abc.abstractmethod
    def length(self) -> int:
        """What examples are padded to."""

    @abc.abstractmethod
    def padded(self, index: int, length: int) -> dict[str, np.ndarray]:
        """The example padded to another length, not below its own."""

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.padded(index, self.length)


@dataclasses.dataclass(frozen=True)
class PaddedRecords(Padded):
    """Records of one sequence each, with `input_ids` among their columns; other columns are padded with 0.

    Attributes:
        columns: what has one value a token.
        targets: what has one value a record.
        limit: most tokens of an example.
    """

    columns: Sequence[str]
    targets: Sequence[str]
    limit: int

    @property
    def length(self) -> int:
        """The longest's tokens, rounded up."""
        return min(-(-int(self.lengths.max(initial=1)) // MULTIPLE) * MULTIPLE, self.limit)

    def padded(self, index: int, length: int) -> dict[str, np.ndarray]:
        record = self.records[index]
        example = {name: padded(record[name], length) for name in self.columns}
        example["input_ids"] = padded(record["input_ids"], length, self.padding_id)
        example["attention_mask"] = padded(np.ones(len(record["input_ids"])), length)
        return example | {name: record[name][0] for name in self.targets}
