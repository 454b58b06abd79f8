"""Measures of structured answers: entities, spans of questions' paragraphs, sets of labels, and rankings."""

from __future__ import annotations

import dataclasses
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.data import metrics as formulas
from headjax.data.examples import ExampleSource
from headjax.data.forms.questions import QuestionWindows, Windows
from headjax.evaluation.measures import Measure, MeasureKind, Outcome, Outcomes, Similarities
from headjax.models.config import Batch, Output
from headjax.models.inputs import batch_array
from headjax.models.tasks import MultiLabel, Span, TokenClassification

PREFIXES = ("O", "B", "I", "E", "S")  # outside, beginning, inside, end, and an entity of one word


class Tags(NamedTuple):
    """Tags as tables `[classes]`: the place of each in `PREFIXES`, and the number of its type."""

    prefix: np.ndarray
    kind: np.ndarray


class Ends(NamedTuple):
    """The entities of tagged words, `[batch, length]`: whether one begins at a word, its end, and its type."""

    begins: jax.Array
    end: jax.Array
    kind: jax.Array


@dataclasses.dataclass(frozen=True)
class Entities(Measure):
    """Entities that are found whole, with the right type, among words with a label, as CoNLL's evaluation reads tags.

    An `I-` after `O` or another type begins an entity. Without such prefixes the tags' accuracy is the primary metric.
    """

    primary_metric: str = "entity_f1"
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not any(name[:2] in ("B-", "I-", "E-", "S-") for name in self.names):
            object.__setattr__(self, "primary_metric", "tag_accuracy")

    takes = (TokenClassification,)

    def outcomes(self) -> Mapping[str, Outcome]:
        kinds: tuple[Literal["right", "predicted", "given"], ...] = ("right", "predicted", "given")
        return {**{name: Count(name, self.names) for name in kinds}, "tags": right_tags}

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        right, predicted, gold = (float(outcomes[name].sum()) for name in ("right", "predicted", "given"))
        accuracy = {"tag_accuracy": float(outcomes["tags"].sum() / outcomes["targets"].sum())}
        if self.primary_metric == "tag_accuracy":
            return accuracy
        return {
            "entity_f1": 2.0 * right / max(predicted + gold, 1.0),
            "entity_precision": right / max(predicted, 1.0),
            "entity_recall": right / max(gold, 1.0),
            **accuracy,
        }


def right_tags(output: Output, batch: Batch) -> jax.Array:
    """Return the number of words whose tag has the largest logit, `[batch]`."""
    right = jnp.argmax(output.require_logits(), axis=-1) == batch_array(batch, "labels")  # -100 is no tag
    return right.sum(axis=1).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Count:
    """The number of entities of an example that are predicted, given, or both (right)."""

    which: Literal["right", "predicted", "given"]
    names: tuple[str, ...]

    def __call__(self, output: Output, batch: Batch) -> jax.Array:
        """Return the number, `[batch]`."""
        labels = batch_array(batch, "labels")
        labelled, tags = labels >= 0, tags_of(self.names)
        predicted = entities(jnp.argmax(output.require_logits(), axis=-1), labelled, tags)
        gold = entities(jnp.maximum(labels, 0), labelled, tags)
        same = predicted.begins & gold.begins & (predicted.end == gold.end) & (predicted.kind == gold.kind)
        entity_words = {"right": same, "predicted": predicted.begins, "given": gold.begins}[self.which]
        return entity_words.sum(axis=1).astype(jnp.float32)


def tags_of(names: Sequence[str]) -> Tags:
    """Return the tables of tags by name."""
    parts = [
        name.partition("-") if name[1:2] == "-" else (name[:1] if name == "O" else "I", "", name) for name in names
    ]
    kinds = sorted({kind for _, _, kind in parts})
    prefix = [PREFIXES.index(letter) if letter in PREFIXES else PREFIXES.index("I") for letter, _, _ in parts]
    return Tags(np.asarray(prefix), np.asarray([kinds.index(kind) for _, _, kind in parts]))


def entities(classes: jax.Array, labelled: jax.Array, tags: Tags) -> Ends:
    """Return the entities of words with these classes, int `[batch, length]`; words that are not judged are passed."""
    length = classes.shape[1]
    places = jnp.arange(length)[None, :]
    before = jax.lax.cummax(jnp.where(labelled, places, -1), axis=1)
    before = jnp.pad(before, ((0, 0), (1, 0)), constant_values=-1)[:, :length]  # the judged word before, or -1
    prefix, kind = jnp.asarray(tags.prefix)[classes], jnp.asarray(tags.kind)[classes]
    prior = jnp.where(before < 0, 0, jnp.take_along_axis(prefix, jnp.maximum(before, 0), axis=1))
    same = jnp.take_along_axis(kind, jnp.maximum(before, 0), axis=1) == kind
    outside, begin, _, end, single = range(len(PREFIXES))

    def one_of(values: jax.Array, *known: int) -> jax.Array:
        return jnp.isin(values, jnp.asarray(known))

    # The conditions of CoNLL's evaluation (conlleval.pl) for a chunk to begin at a word, and to end before it.
    begins = one_of(prefix, begin, single) | (one_of(prior, end, single, outside) & (prefix != outside))
    begins = labelled & (prefix != outside) & (begins | ~same)
    closes = one_of(prior, end, single) | one_of(prefix, begin, single, outside) | ~same
    closes = labelled & (prior != outside) & closes
    # An entity ends with the last judged word before the first word that closes it, or with the sentence.
    last = jnp.where(labelled, places, -1).max(axis=1, keepdims=True)
    closing = jnp.concatenate([jnp.where(closes, before, last)[:, 1:], last], axis=1)
    return Ends(begins, jax.lax.cummin(closing, axis=1, reverse=True), kind)


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
    predicted, scores = normalize_answer(prediction).split(), []
    for gold in (normalize_answer(answer).split() for answer in answers):
        common = (Counter(predicted) & Counter(gold)).total()
        scores.append(2.0 * common / (len(predicted) + len(gold)) if common else 0.0)
    return max(scores)


def squad_metrics(predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return the mean exact match and F1 over the questions, as fractions of 1."""
    answered = {question: predictions[question] for question in answers if question in predictions}
    exact = sum(exact_match(text, answers[question]) for question, text in answered.items())
    overlap = sum(answer_f1(text, answers[question]) for question, text in answered.items())
    return {"exact_match": exact / len(answers), "f1": overlap / len(answers)}


LONGEST_ANSWER = 30
"""Number of tokens of the longest answer, as in the code of Devlin et al. 2019."""


@dataclasses.dataclass(frozen=True)
class Spans(Measure):
    """SQuAD's exact match and F1; a question's answer is the best span of all its windows."""

    primary_metric: str = "f1"
    windows: Windows = dataclasses.field(default=Windows((), ()), compare=False)

    takes = (Span,)

    def outcomes(self) -> Mapping[str, Outcome]:
        return {"score": best_score, "start": best_start, "end": best_end, "window": window_number}

    @property
    def kind(self) -> MeasureKind:
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
        predicted = self.answers(outcomes)
        questions = self.windows.questions
        gold = {questions[number].id: questions[number].answers for number in predicted}
        return squad_metrics({questions[number].id: text for number, text in predicted.items()}, gold)

    def values(self, outcomes: Outcomes) -> np.ndarray:
        """Return the F1 of every question, `[questions]`."""
        predicted = self.answers(outcomes).items()
        return np.asarray([answer_f1(text, self.windows.questions[number].answers) for number, text in predicted])


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


CUT = 10  # candidates of a ranking that count


@dataclasses.dataclass(frozen=True)
class SeveralLabels(Measure):
    """F1 of several labels an example, a class being predicted where its probability is above a half."""

    primary_metric: str = "micro_f1"
    names: tuple[str, ...] = ()

    takes = (MultiLabel,)

    def outcomes(self) -> Mapping[str, Outcome]:
        return {f"class {number}": OfClass(number) for number in range(len(self.names))}

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        codes = np.stack([outcomes[f"class {number}"] for number in range(len(self.names))], axis=1).astype(int)
        predicted, gold = (codes & 1).astype(bool), (codes & 2).astype(bool)
        return {
            "micro_f1": formulas.f1(predicted.ravel(), gold.ravel()),
            "macro_f1": float(np.mean([formulas.f1(*columns) for columns in zip(predicted.T, gold.T, strict=True)])),
            "subset_accuracy": float((predicted == gold).all(axis=1).mean()),
        }


@dataclasses.dataclass(frozen=True)
class OfClass:
    """Whether a class is predicted (1) and given (2)."""

    number: int

    def __call__(self, output: Output, batch: Batch) -> jax.Array:
        """Return the sum, `[batch]`."""
        predicted = output.require_logits()[:, self.number] > 0.0
        return predicted + 2.0 * jnp.nan_to_num(batch_array(batch, "labels")[:, self.number])


@dataclasses.dataclass(frozen=True)
class Ranking(Similarities):
    """The candidates of each query in the order of their similarities; queries without a relevant one do not count."""

    primary_metric: str = f"ndcg_at_{CUT}"
    chosen: tuple[str, ...] = (f"ndcg_at_{CUT}", f"mrr_at_{CUT}")

    def outcomes(self) -> Mapping[str, Outcome]:
        return {**super().outcomes(), "query": query_number}

    @property
    def kind(self) -> MeasureKind:
        return "graded"

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        ranked = rankings(outcomes)
        reciprocal = float(np.mean([formulas.reciprocal_rank(relevance, CUT) for relevance in ranked]))
        return {f"ndcg_at_{CUT}": float(self.values(outcomes).mean()), f"mrr_at_{CUT}": reciprocal}

    def values(self, outcomes: Outcomes) -> np.ndarray:
        return np.asarray([formulas.ndcg(relevance, CUT) for relevance in rankings(outcomes)])


def query_number(output: Output, batch: Batch) -> jax.Array:
    """Return the number of the query, `[batch]`."""
    return batch_array(batch, "query")


def rankings(outcomes: Outcomes) -> list[np.ndarray]:
    """Return for every query with a relevant candidate the relevances in the order of falling predictions."""
    relevances = []
    for query in np.unique(outcomes["query"]):
        mine = outcomes["query"] == query
        order = np.argsort(-outcomes["prediction"][mine], kind="stable")
        relevance = outcomes["label"][mine][order]
        if (relevance > 0).any():
            relevances.append(relevance)
    if not relevances:
        raise HeadjaxError("retrieval: no query has a relevant text")
    return relevances
