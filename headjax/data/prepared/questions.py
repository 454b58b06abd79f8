"""Questions about paragraphs, prepared."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from headjax.core.errors import DataError, require_positive
from headjax.core.serialize import kind
from headjax.data.encoding import padding_id
from headjax.data.prepared.form import Encoded, Form, Record, Records, Seed, Split, tokenizer_of
from headjax.data.prepared.padded import PaddedRecords
from headjax.data.prepared.rows import TaskRow
from headjax.data.question_answering import Question, QuestionAnswering, QuestionRows, Window, Windows
from headjax.data.task import Source
from headjax.tokenizers.tokenizer import Tokenizer

COLUMNS = ("input_ids", "token_type_ids", "context_mask")
TARGETS = ("start_positions", "end_positions")


@kind("questions")
@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionForm(Form):
    """`id`, `question`, `context`, `answers` and `start`, where the first answer starts: see `QuestionAnswering`.

    Attributes:
        length: tokens of a window.
        stride: tokens by which windows of one paragraph overlap.
    """

    fields: ClassVar = {"id": "text", "question": "text", "context": "text", "answers": "texts", "start": "integer"}

    length: int = 384
    stride: int = 128

    def __post_init__(self) -> None:
        require_positive(self, "length")

    def encode(self, tokenizer: Tokenizer | None, rows: Sequence[TaskRow], split: Split, seed: Seed) -> Encoded:
        questions = [_question(row) for row in rows]
        config = QuestionAnswering(validation="prepared", max_length=self.length, stride=self.stride)
        found = config.encode(tokenizer_of(tokenizer), questions)
        records: list[Record] = []
        seen = -1
        for number, window in enumerate(found.source.windows):
            record = {name: found.columns[name][number] for name in COLUMNS}
            record |= {name: found.targets[name][number : number + 1] for name in TARGETS}
            if split == "validation":
                # The first window of a question carries it, for the official metrics.
                text = json.dumps(questions[window.question]) if window.question != seen else ""
                asked = np.frombuffer(text.encode(), np.uint8)
                record |= {"offsets": window.offsets.astype(np.int32), "question": asked}
            seen = window.question
            records.append(record)
        tokens = int(found.lengths.sum())
        return Encoded(records, {"questions": len(questions), "tokens": tokens})

    def tokens(self, record: Record) -> int:
        return len(record["input_ids"])

    def train(self, tokenizer: Tokenizer | None, records: Records, sizes: np.ndarray) -> Source:
        fill = padding_id(tokenizer_of(tokenizer))
        return PaddedRecords(records, sizes, fill, COLUMNS, TARGETS, self.length)

    def validation(self, tokenizer: Tokenizer | None, records: Sequence[Record]) -> Source:
        questions: list[Question] = []
        windows: list[Window] = []
        for record in records:
            if record["question"].size:
                name, asked, context, answers, start = json.loads(record["question"].tobytes())
                questions.append(Question(name, asked, context, tuple(answers), start))
            windows.append(Window(len(questions) - 1, record["offsets"]))
        columns = {name: [record[name] for record in records] for name in COLUMNS}
        targets = {name: np.concatenate([record[name] for record in records]) for name in TARGETS}
        targets["window"] = np.arange(len(records), dtype=np.int32)
        source = Windows(tuple(questions), tuple(windows))
        return QuestionRows(columns, targets, padding_id(tokenizer_of(tokenizer)), self.length, source)


def _question(row: TaskRow) -> Question:
    values = row.values
    answers = tuple(values["answers"])
    if not answers:
        raise DataError(f"{row.place}: no answer (SQuAD v2's unanswerable questions are not read)")
    start = int(values["start"])
    if values["context"][start : start + len(answers[0])] != answers[0]:
        raise DataError(f"{row.place}: {answers[0]!r} does not stand at character {start} of its context")
    return Question(values["id"], values["question"].strip(), values["context"], answers, start)
