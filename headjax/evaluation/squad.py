"""Exact match and F1 of answers, as SQuAD v1.1's official evaluation defines them (Rajpurkar et al. 2016)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

from headjax.core.errors import DataError

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """The text in lower case, without ASCII punctuation and then without articles, parted by single spaces.

    The order matters: "the-" loses its hyphen before the article is looked for.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1.0 where the normalised prediction equals a normalised answer, else 0.0."""
    return float(normalize_answer(prediction) in {normalize_answer(answer) for answer in answers})


def answer_f1(prediction: str, answers: Sequence[str]) -> float:
    """The best answer's 2 c / (p + a): p, a count normalised words of prediction and answer, c those in common.

    Words that occur several times count as often as they occur in both.
    """
    return max(_f1(normalize_answer(prediction).split(), normalize_answer(answer).split()) for answer in answers)


def squad_metrics(predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Mean exact match and F1 over the questions, as fractions of 1.

    Args:
        predictions: answer by question; a question without one scores 0, answers to other questions are left out.
        answers: the right answers by question.

    Raises:
        DataError: there are no questions.
    """
    if not answers:
        raise DataError("squad: there are no questions")
    found = {question: predictions[question] for question in answers if question in predictions}
    exact = sum(exact_match(text, answers[question]) for question, text in found.items())
    overlap = sum(answer_f1(text, answers[question]) for question, text in found.items())
    return {"exact_match": exact / len(answers), "f1": overlap / len(answers)}


def _f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    common = (Counter(predicted) & Counter(gold)).total()
    return 2.0 * common / (len(predicted) + len(gold)) if common else 0.0
