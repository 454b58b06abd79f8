"""Questions about paragraphs, with answers that are spans of them, in SQuAD's file format."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headjax.core.errors import DataError, require, require_positive
from headjax.core.files import read_text
from headjax.core.serialize import kind
from headjax.data.buckets import LengthBuckets
from headjax.data.encoding import changeable, padding_id
from headjax.data.ragged import RaggedRows
from headjax.data.task import DataConfig, TaskData
from headjax.tokenizers.tokenizer import Tokenizer

QUESTION_LENGTH = 64
"""Tokens after which a question is cut (Devlin et al. 2019's code)."""


class Question(NamedTuple):
    """A question.

    Attributes:
        id: its identifier.
        text: the question.
        context: the paragraph that answers it.
        answers: the right answers.
        start: where the first of them starts in the context, in characters.
    """

    id: str
    text: str
    context: str
    answers: tuple[str, ...]
    start: int


class Window(NamedTuple):
    """A part of a question's paragraph that fits into one example.

    Attributes:
        question: number of the question.
        offsets: `[tokens, 2]` where each token starts and ends in the context, in characters; 0, 0 for other tokens.
    """

    question: int
    offsets: np.ndarray


@dataclasses.dataclass(frozen=True)
class Windows:
    """Questions and the windows they are read in.

    Attributes:
        questions: the questions.
        windows: the windows, in the order of the questions.
    """

    questions: tuple[Question, ...]
    windows: tuple[Window, ...]

    def answer(self, window: int, start: int, end: int) -> str:
        """The text from token `start` of a window to token `end`, both included."""
        question, offsets = self.windows[window]
        return self.questions[question].context[offsets[start, 0] : offsets[end, 1]]


class QuestionRows(RaggedRows):
    """Windows as examples.

    Args:
        columns, targets, padding_id, limit: see `RaggedRows`.
        source: the questions and windows they come from.
    """

    def __init__(
        self,
        columns: Mapping[str, Sequence[np.ndarray]],
        targets: Mapping[str, np.ndarray],
        padding_id: int,
        limit: int,
        source: Windows,
    ) -> None:
        super().__init__(columns, targets, padding_id, limit=limit)
        self.source = source


@kind("question_answering")
@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionAnswering(DataConfig):
    """SQuAD v1.1 (Rajpurkar et al. 2016), or what has its format.

    An example is a window of a paragraph: `[CLS] question [SEP] part of the paragraph [SEP]` for BERT. Long paragraphs
    have several, which overlap by `stride` tokens. `start_positions` and `end_positions` are those of the first answer,
    or both 0 where it is not in the window. `context_mask` is 1 at the paragraph's tokens, `window` is its number.

    Attributes:
        train: file to train on; empty for none.
        validation: file to evaluate on.
        validation_limit: how many of its questions, the first ones; 0 is all.
        max_length: tokens of a window.
        stride: tokens by which windows overlap.
        buckets: lengths that training batches are padded to, besides the longest window's; one compilation each.
    """

    validation: str
    train: str = ""
    validation_limit: int = 0
    max_length: int = 384
    stride: int = 128
    buckets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_positive(self, "max_length")
        require(self.validation_limit >= 0, "validation_limit", f"must not be negative, got {self.validation_limit}")
        require(self.stride >= 0, "stride", f"must not be negative, got {self.stride}")

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        if tokenizer is None:
            raise DataError("tokenizer: questions need a model that brings its tokenizer")
        train = self.encode(tokenizer, read_questions(self.train) if self.train else ())
        asked = read_questions(self.validation)
        validation = self.encode(tokenizer, asked[: self.validation_limit or len(asked)])
        info = {
            "text": self.train or self.validation,
            "tokenizer": tokenizer.fingerprint,
            "data": train.fingerprint,
            "train": {"windows": len(train)},
            "validation": {"questions": len(validation.source.questions), "windows": len(validation)},
        }
        rows = LengthBuckets(train, self.buckets) if self.buckets else train
        return TaskData(tokenizer, rows, validation, info)

    def encode(self, tokenizer: Tokenizer, questions: Sequence[Question]) -> QuestionRows:
        """The windows of the questions.

        Raises:
            DataError: a length that leaves no room for the paragraph, or a tokenizer that cannot join pairs.
        """
        backend = changeable(tokenizer)
        special = backend.num_special_tokens_to_add(True)
        room = self.max_length - special - QUESTION_LENGTH
        if special == 0:
            raise DataError("tokenizer: it has no post-processor, so it cannot join questions and paragraphs")
        if room <= self.stride:
            raise DataError(
                f"max_length: {self.max_length} tokens leave {max(room, 0)} for the paragraph, stride is {self.stride}"
            )
        asked = [_cut(text, one) for text, one in _encoded(backend, [question.text for question in questions])]
        backend.enable_truncation(self.max_length, stride=self.stride, strategy="only_second")
        encoded = backend.encode_batch(list(zip(asked, (question.context for question in questions), strict=True)))
        columns: dict[str, list[np.ndarray]] = {"input_ids": [], "token_type_ids": [], "context_mask": []}
        windows: list[Window] = []
        spans: list[tuple[int, int]] = []
        for number, first in enumerate(encoded):
            for one in (first, *first.overflowing):
                inside = np.asarray([sequence == 1 for sequence in one.sequence_ids])
                offsets = np.where(inside[:, None], np.asarray(one.offsets), 0)
                columns["input_ids"].append(np.asarray(one.ids, np.int32))
                columns["token_type_ids"].append(np.asarray(one.type_ids, np.int32))
                columns["context_mask"].append(inside.astype(np.int32))
                windows.append(Window(number, offsets))
                spans.append(_span(questions[number], inside, offsets))
        starts, ends = np.asarray(spans, np.int32).reshape(-1, 2).T
        numbers = np.arange(len(windows), dtype=np.int32)
        targets = {"start_positions": starts, "end_positions": ends, "window": numbers}
        source = Windows(tuple(questions), tuple(windows))
        return QuestionRows(columns, targets, padding_id(tokenizer), self.max_length, source)


def read_questions(path: str | Path) -> tuple[Question, ...]:
    """The questions of a SQuAD v1.1 file.

    Raises:
        DataError: a file of another format, without questions, or an answer that does not stand where it should; the
            message starts with the file and names the question.
    """
    file = Path(path).expanduser()
    try:
        articles = json.loads(read_text(file))["data"]
        found = [
            _question(file, paragraph["context"], entry)
            for article in articles
            for paragraph in article["paragraphs"]
            for entry in paragraph["qas"]
        ]
    except json.JSONDecodeError as error:
        raise DataError(f"{file}: line {error.lineno}: not JSON ({error.msg})") from None
    except (KeyError, TypeError) as error:
        raise DataError(f"{file}: not in SQuAD's format ({type(error).__name__}: {error})") from None
    if not found:
        raise DataError(f"{file}: no questions")
    return tuple(found)


def _question(file: Path, context: str, entry: dict[str, Any]) -> Question:
    answers = entry["answers"]
    if not answers:
        raise DataError(f"{file}: question {entry['id']}: no answer (SQuAD v2's unanswerable questions are not read)")
    first, start = answers[0]["text"], answers[0]["answer_start"]
    if context[start : start + len(first)] != first:
        raise DataError(f"{file}: question {entry['id']}: {first!r} does not stand at character {start} of its context")
    return Question(entry["id"], entry["question"].strip(), context, tuple(one["text"] for one in answers), start)


def _encoded(backend: Any, texts: Sequence[str]) -> list[tuple[str, Any]]:
    return list(zip(texts, backend.encode_batch(list(texts), add_special_tokens=False), strict=True))


def _cut(text: str, encoding: Any) -> str:
    """The text of the first `QUESTION_LENGTH` tokens."""
    return text if len(encoding.ids) <= QUESTION_LENGTH else text[: encoding.offsets[QUESTION_LENGTH - 1][1]]


def _span(question: Question, inside: np.ndarray, offsets: np.ndarray) -> tuple[int, int]:
    """First and last token of the answer in a window; 0, 0 if it is not all there."""
    start, end = question.start, question.start + len(question.answers[0])
    tokens = np.flatnonzero(inside & (offsets[:, 1] > start) & (offsets[:, 0] < end))
    if not tokens.size or offsets[tokens[0], 0] > start or offsets[tokens[-1], 1] < end:
        return 0, 0
    return int(tokens[0]), int(tokens[-1])
