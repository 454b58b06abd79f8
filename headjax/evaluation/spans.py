"""Exact match and F1 of answers, as SQuAD v1.1's official evaluation defines them (Rajpurkar et al. 2016)."""

from __future__ import annotations

import dataclasses
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headjax.data.examples import ExampleSource
from headjax.data.forms.questions import QuestionWindows, Windows
from headjax.evaluation.measures import Kind, Measure, Outcome, Outcomes
from headjax.models.config import Batch, Output
from headjax.models.inputs import batch_array
from headjax.models.tasks import Span

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Return a text in lower case, without ASCII punctuation and then without articles, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1.0 if the normalised prediction equals a normalised answer, else 0.0."""
    return float(normalize_answer(prediction) in {normalize_answer(answer) for answer in answers})


def answer_f1(prediction: str, answers: Sequence[str]) -> float:
    """Return the greatest 2 c / (p + a) over the answers, for p and a normalised words, c of them in common.

    A word that occurs several times counts as often as it occurs in both.
    """
    return max(_f1(normalize_answer(prediction).split(), normalize_answer(answer).split()) for answer in answers)


def squad_metrics(predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return the mean exact match and F1 over the questions, as fractions of 1."""
    found = {question: predictions[question] for question in answers if question in predictions}
    exact = sum(exact_match(text, answers[question]) for question, text in found.items())
    overlap = sum(answer_f1(text, answers[question]) for question, text in found.items())
    return {"exact_match": exact / len(answers), "f1": overlap / len(answers)}


def _f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    common = (Counter(predicted) & Counter(gold)).total()
    return 2.0 * common / (len(predicted) + len(gold)) if common else 0.0


LONGEST_ANSWER = 30
"""Number of tokens of the longest answer, as in the code of Devlin et al. 2019."""


@dataclasses.dataclass(frozen=True)
class Spans(Measure):
    """SQuAD's exact match and F1; a question's answer is the best span of all its windows."""

    headline: str = "f1"
    windows: Windows = dataclasses.field(default=Windows((), ()), compare=False)

    takes = (Span,)

    def outcomes(self) -> Mapping[str, Outcome]:
        return {"score": best_score, "start": best_start, "end": best_end, "window": window_number}

    @property
    def kind(self) -> Kind:
        return "graded"

    def on(self, source: ExampleSource, counts: Mapping[str, Any]) -> Measure:
        return dataclasses.replace(self, windows=source.windows) if isinstance(source, QuestionWindows) else self

    def together(self, example: Mapping[str, np.ndarray]) -> str | None:
        """Return the paragraph: its questions and windows share most of their tokens."""
        window = self.windows.windows[int(example["window"])]
        return self.windows.questions[window.question].context

    def answers(self, outcomes: Outcomes) -> dict[int, str]:
        """Return the answers by question number, of every question with a window among the outcomes."""
        best: dict[int, tuple[float, str]] = {}
        columns = (outcomes[name] for name in ("score", "start", "end", "window"))
        for score, start, end, window in zip(*columns, strict=True):
            question = self.windows.windows[int(window)].question
            if question not in best or score > best[question][0]:
                best[question] = (float(score), self.windows.answer(int(window), int(start), int(end)))
        return {question: text for question, (_, text) in sorted(best.items())}

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        found = self.answers(outcomes)
        questions = self.windows.questions
        gold = {questions[number].id: questions[number].answers for number in found}
        return squad_metrics({questions[number].id: text for number, text in found.items()}, gold)

    def values(self, outcomes: Outcomes) -> np.ndarray:
        """Return the F1 of every question, `[questions]`."""
        found = self.answers(outcomes).items()
        return np.asarray([answer_f1(text, self.windows.questions[number].answers) for number, text in found])


def best_span(output: Output, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return score, first and last token `[batch]` of the span with the largest start + end logit.

    Spans lie in the paragraph (`context_mask`) and have at most `LONGEST_ANSWER` tokens.
    """
    logits = output.require_logits().astype(jnp.float32)
    inside = batch_array(batch, "context_mask").astype(bool)
    length = inside.shape[1]
    start, end = (jnp.where(inside, logits[..., i], -jnp.inf) for i in (0, 1))
    gap = jnp.arange(length)[None, :] - jnp.arange(length)[:, None]
    allowed = (gap >= 0) & (gap < LONGEST_ANSWER)
    scores = jnp.where(allowed[None], start[:, :, None] + end[:, None, :], -jnp.inf).reshape(-1, length * length)
    best = jnp.argmax(scores, axis=1)
    return jnp.max(scores, axis=1), best // length, best % length


def best_score(output: Output, batch: Batch) -> jax.Array:
    """Return the sum of the best span's two logits, `[batch]`."""
    return best_span(output, batch)[0]


def best_start(output: Output, batch: Batch) -> jax.Array:
    """Return the best span's first token, `[batch]`."""
    return best_span(output, batch)[1].astype(jnp.float32)


def best_end(output: Output, batch: Batch) -> jax.Array:
    """Return the best span's last token, `[batch]`."""
    return best_span(output, batch)[2].astype(jnp.float32)


def window_number(output: Output, batch: Batch) -> jax.Array:
    """Return the window's number, `[batch]`."""
    return batch_array(batch, "window").astype(jnp.float32)
