"""Records of one sequence each as examples, padded when read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from headjax.data.prepared.form import Records, padded
from headjax.data.ragged import MULTIPLE


@dataclasses.dataclass(frozen=True)
class PaddedRecords:
    """Examples for `train_iterator` and, sorted by length, for `LengthBuckets` (which asks for `padded`).

    Attributes:
        records: the records, with `input_ids` among their columns.
        lengths: `[records]` their tokens.
        columns: what has one value a token.
        targets: what has one value a record.
        padding_id: fills `input_ids`; other columns are filled with 0.
        limit: most tokens of an example.
    """

    records: Records
    lengths: np.ndarray
    columns: Sequence[str]
    targets: Sequence[str]
    padding_id: int
    limit: int

    @property
    def length(self) -> int:
        """What examples are padded to: the longest's tokens, rounded up."""
        return min(-(-int(self.lengths.max(initial=1)) // MULTIPLE) * MULTIPLE, self.limit)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.padded(index, self.length)

    def padded(self, index: int, length: int) -> dict[str, np.ndarray]:
        """The example padded to another length, not below its own."""
        record = self.records[index]
        example = {name: padded(record[name], length) for name in self.columns}
        example["input_ids"] = padded(record["input_ids"], length, self.padding_id)
        example["attention_mask"] = padded(np.ones(len(record["input_ids"])), length)
        return example | {name: record[name][0] for name in self.targets}
