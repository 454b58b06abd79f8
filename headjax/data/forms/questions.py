"""The form of questions about paragraphs, whose answers are spans of the paragraph."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from headjax.core.errors import DataError
from headjax.core.fields import Count, Size
from headjax.core.serialize import kind
from headjax.data.examples import ExampleSource, Mapped, MeasureSpec, Padded, Record, Records, each
from headjax.data.forms.form import Encoded, Seed, SequenceForm
from headjax.data.rows import Row, Split
from headjax.tokenizers.tokenizer import Tokenizer

QUESTION_LENGTH = 64  # number of tokens after which a question is cut, as in the code of Devlin et al. 2019


class Question(NamedTuple):
    """A question."""

    id: str
    text: str
    context: str
    answers: tuple[str, ...]
    start: int


class Window(NamedTuple):
    """A part of a question's paragraph that fits into one example; the question, and its number among all."""

    number: int
    question: Question
    offsets: np.ndarray

    def answer(self, start: int, end: int) -> str:
        """Return the text from token `start` to token `end`, both included."""
        return self.question.context[self.offsets[start, 0] : self.offsets[end, 1]]


@kind("questions")
@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionForm(SequenceForm):
    """`id`, `question`, `context`, `answers` and `start` (of the first answer, in characters), as in SQuAD v1.1.

    An example is a window of a paragraph: `[CLS] question [SEP] part of the paragraph [SEP]` for BERT. Long paragraphs
    have several windows, which overlap by `stride` tokens. `start_positions` and `end_positions` are the first and last
    token of the first answer, or both 0 if it is not in the window. `context_mask` is 1 at the paragraph's tokens;
    `window` is the window's number.

    Attributes:
        length: number of tokens of a window.
        stride: number of tokens by which windows of one paragraph overlap.
    """

    fields: ClassVar = {"id": "text", "question": "text", "context": "text", "answers": "texts", "start": "integer"}
    columns: ClassVar = ("input_ids", "token_type_ids", "context_mask")
    targets: ClassVar = ("start_positions", "end_positions")
    divided_by: ClassVar = "context"  # all questions of a paragraph together

    length: Size = 384
    stride: Count = 128

    def encode(self, tokenizer: Tokenizer, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        questions = [_question(row) for row in rows]
        records: list[Record] = []
        for number, windows in enumerate(self._windows(tokenizer, questions)):
            for place, window in enumerate(windows):
                inside = np.asarray([sequence == 1 for sequence in window.sequence_ids])
                offsets = np.where(inside[:, None], np.asarray(window.offsets), 0)
                start, end = _span(questions[number], inside, offsets)
                record = {
                    "input_ids": np.asarray(window.ids, np.int32),
                    "token_type_ids": tokenizer.types(window),
                    "context_mask": inside.astype(np.int32),
                    "start_positions": np.asarray([start], np.int32),
                    "end_positions": np.asarray([end], np.int32),
                    "offsets": offsets.astype(np.int32),
                }
                # The first window of a question carries it, for the official metrics.
                question = b"" if place else json.dumps(questions[number]).encode()
                records.append(record | {"question": np.frombuffer(question, np.uint8)})
        return Encoded(records, {"questions": len(questions), "tokens": sum(map(self.tokens, records))})

    def _windows(self, tokenizer: Tokenizer, questions: Sequence[Question]) -> list[list[Any]]:
        special = tokenizer.backend.num_special_tokens_to_add(True)
        room = self.length - special - QUESTION_LENGTH
        if special == 0:
            raise DataError("tokenizer: it has no post-processor, so it cannot join questions and paragraphs")
        if room <= self.stride:
            message = f"{self.length} tokens leave {max(room, 0)} for the paragraph"
            raise DataError(f"length: {message}, stride is {self.stride}")
        encoded = tokenizer.encodings((question.text for question in questions), add_special_tokens=False)
        pairs = []
        for question, encoding in zip(questions, encoded, strict=True):
            end = encoding.offsets[QUESTION_LENGTH - 1][1] if len(encoding.ids) > QUESTION_LENGTH else None
            pairs.append((question.text[:end], question.context))
        cut = {"max_length": self.length, "stride": self.stride, "strategy": "only_second"}
        return [[first, *first.overflowing] for first in tokenizer.encodings(pairs, cut)]

    def examples(self, tokenizer: Tokenizer, records: Records, sizes: np.ndarray, split: Split) -> QuestionWindows:
        numbered = Mapped(range(len(records)), lambda i: {**records[i], "window": np.asarray([i], np.int32)})
        windows = super().examples(tokenizer, numbered, sizes, split)
        return QuestionWindows(windows.records, windows.lengths, windows.length, windows.pad, all_records=records)

    def pad(self, record: Record, length: int, padding_id: int) -> dict[str, np.ndarray]:
        return super().pad(record, length, padding_id) | {"window": record["window"][0]}

    def measured(self, metrics: Sequence[str], counts: Mapping[str, Any], source: ExampleSource) -> MeasureSpec | None:
        return MeasureSpec("spans", {"windows": source.windows}) if isinstance(source, QuestionWindows) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionWindows(Padded):
    """Windows whose answers can be read as text."""

    all_records: Records

    @functools.cached_property
    def windows(self) -> tuple[Window, ...]:
        """All windows with their questions; their records are read once."""
        questions: list[Question] = []
        windows: list[Window] = []
        for record in each(self.all_records):
            if record["question"].size:
                name, text, context, answers, start = json.loads(record["question"].tobytes())
                questions.append(Question(name, text, context, tuple(answers), start))
            windows.append(Window(len(questions) - 1, questions[-1], record["offsets"]))
        return tuple(windows)


def _question(row: Row) -> Question:
    values = row.values
    answers = tuple(values["answers"])
    if not answers:
        raise DataError(f"{row.place}: no answer (SQuAD v2's unanswerable questions are not read)")
    start = int(values["start"])
    if values["context"][start : start + len(answers[0])] != answers[0]:
        raise DataError(f"{row.place}: {answers[0]!r} does not stand at character {start} of its context")
    return Question(values["id"], values["question"].strip(), values["context"], answers, start)


def _span(question: Question, inside: np.ndarray, offsets: np.ndarray) -> tuple[int, int]:
    """Return the first and last token of the answer in a window; 0, 0 if the window does not hold all of it."""
    answer = question.answers[0]
    start = question.start + len(answer) - len(answer.lstrip())
    end = start + len(answer.strip())
    tokens = np.flatnonzero(inside & (offsets[:, 1] > start) & (offsets[:, 0] < end))
    if not tokens.size or offsets[tokens[0], 0] > start or offsets[tokens[-1], 1] < end:
        return 0, 0
    return int(tokens[0]), int(tokens[-1])


def usual_stride(length: int) -> int:
    """Return the default overlap of windows of this length: `QuestionForm.stride`, or half of a short paragraph's."""
    return max(0, min(QuestionForm.stride, (length - QUESTION_LENGTH) // 2))
