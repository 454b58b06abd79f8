"""Measures of structured answers: entities, spans of questions' paragraphs, sets of labels, and rankings."""

from __future__ import annotations

import dataclasses
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.data.examples import ExampleSource
from headjax.data.forms.questions import Question, QuestionWindows, Window
from headjax.evaluation.measures import Measure, Outcomes, Similarities, f1, ndcg, reciprocal_rank, right_tokens
from headjax.models.config import Batch, Output
from headjax.models.inputs import batch_array
from headjax.models.tasks import MultiLabel, Span, TokenClassification

PREFIXES = ("O", "B", "I", "E", "S")  # outside, beginning, inside, end, and an entity of one word


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
    columns = ("right", "predicted", "given", "tags")

    def outcomes(self, output: Output, batch: Batch) -> Mapping[str, jax.Array]:
        labels = batch_array(batch, "labels")  # [batch, length]
        classes = (jnp.argmax(output.require_logits(), axis=-1), jnp.maximum(labels, 0))
        predicted, gold = (entities(each, labels >= 0, self.names) for each in classes)
        same_kind, same_end = (ours == theirs for ours, theirs in zip(predicted[1:], gold[1:], strict=True))
        words = {"right": predicted[0] & gold[0] & same_kind & same_end, "predicted": predicted[0], "given": gold[0]}
        counts = {name: array.sum(axis=1).astype(jnp.float32) for name, array in words.items()}
        return counts | {"tags": right_tokens(output, batch)}

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


def entities(classes: jax.Array, labelled: jax.Array, names: Sequence[str]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return whether an entity begins at a word, its type and its end, `[batch, length]` each.

    `classes` are the numbers of the words' tags among `names`; words that are not `labelled` are passed over.
    """
    parts = [(name[0], name[2:]) if name[1:2] == "-" else ("O" if name == "O" else "I", name) for name in names]
    kinds = sorted({kind for _, kind in parts})
    prefixes = [PREFIXES.index(letter if letter in PREFIXES else "I") for letter, _ in parts]
    prefix, kind = jnp.asarray(prefixes)[classes], jnp.asarray([kinds.index(kind) for _, kind in parts])[classes]
    length = classes.shape[1]
    places = jnp.arange(length)[None, :]
    before = jax.lax.cummax(jnp.where(labelled, places, -1), axis=1)
    before = jnp.pad(before, ((0, 0), (1, 0)), constant_values=-1)[:, :length]  # the judged word before, or -1
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
    return begins, kind, jax.lax.cummin(closing, axis=1, reverse=True)


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


LONGEST_ANSWER = 30  # number of tokens of the longest answer, as in the code of Devlin et al. 2019


class Answer(NamedTuple):
    """A model's answer to a question, and its score, the sum of the logits of start and end."""

    question: Question
    text: str
    score: float


@dataclasses.dataclass(frozen=True)
class Spans(Measure):
    """SQuAD's exact match and F1; a question's answer is the best span of all its windows."""

    primary_metric: str = "f1"
    windows: tuple[Window, ...] = dataclasses.field(default=(), compare=False)

    takes = (Span,)
    kind = "graded"
    columns = ("score", "start", "end", "window")

    def outcomes(self, output: Output, batch: Batch) -> Mapping[str, jax.Array]:
        arrays = (*best_span(output, batch), batch_array(batch, "window"))
        return {name: array.astype(jnp.float32) for name, array in zip(self.columns, arrays, strict=True)}

    def on(self, source: ExampleSource, counts: Mapping[str, Any]) -> Measure:
        return dataclasses.replace(self, windows=source.windows) if isinstance(source, QuestionWindows) else self

    def together(self, example: Mapping[str, np.ndarray]) -> str | None:
        """Return the paragraph: its questions and windows share most of their tokens."""
        return self.windows[int(example["window"])].question.context

    def answers(self, outcomes: Outcomes) -> dict[int, Answer]:
        """Return the answers by question number, of every question with a window among the outcomes."""
        best: dict[int, Answer] = {}
        for score, start, end, number in zip(*(outcomes[name] for name in self.columns), strict=True):
            window = self.windows[int(number)]
            if window.number not in best or score > best[window.number].score:
                best[window.number] = Answer(window.question, window.answer(int(start), int(end)), float(score))
        return dict(sorted(best.items()))

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        answers = self.answers(outcomes).values()
        gold = {question.id: question.answers for question, _, _ in answers}
        return squad_metrics({question.id: text for question, text, _ in answers}, gold)

    def values(self, outcomes: Outcomes) -> np.ndarray:
        """Return the F1 of every question, `[questions]`."""
        return np.asarray([answer_f1(text, question.answers) for question, text, _ in self.answers(outcomes).values()])


def best_span(output: Output, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the largest start + end logit of an answer in the paragraph, its first and last token, `[batch]`."""
    logits = output.require_logits().astype(jnp.float32)
    inside = batch_array(batch, "context_mask").astype(bool)
    length = inside.shape[1]
    start, end = (jnp.where(inside, logits[..., i], -jnp.inf) for i in (0, 1))
    gap = jnp.arange(length)[None, :] - jnp.arange(length)[:, None]
    allowed = (gap >= 0) & (gap < LONGEST_ANSWER)
    scores = jnp.where(allowed[None], start[:, :, None] + end[:, None, :], -jnp.inf).reshape(-1, length * length)
    best = jnp.argmax(scores, axis=1)
    return jnp.max(scores, axis=1), best // length, best % length


CUT = 10  # candidates of a ranking that count


@dataclasses.dataclass(frozen=True)
class SeveralLabels(Measure):
    """F1 of several labels an example, a class being predicted where its probability is above a half."""

    primary_metric: str = "micro_f1"
    names: tuple[str, ...] = ()

    takes = (MultiLabel,)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"class {number}" for number in range(len(self.names)))

    def outcomes(self, output: Output, batch: Batch) -> Mapping[str, jax.Array]:
        labels = jnp.nan_to_num(batch_array(batch, "labels"))  # [batch, classes]
        codes = (output.require_logits() > 0.0) + 2.0 * labels  # 1 of a predicted class, 2 of a right one
        return {name: codes[:, number] for number, name in enumerate(self.columns)}

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        codes = np.stack([outcomes[name] for name in self.columns], axis=1).astype(int)
        predicted, gold = (codes & 1).astype(bool), (codes & 2).astype(bool)
        return {
            "micro_f1": f1(predicted.ravel(), gold.ravel()),
            "macro_f1": float(np.mean([f1(*columns) for columns in zip(predicted.T, gold.T, strict=True)])),
            "subset_accuracy": float((predicted == gold).all(axis=1).mean()),
        }


@dataclasses.dataclass(frozen=True)
class Ranking(Similarities):
    """The candidates of each query in the order of their similarities; queries without a relevant one do not count."""

    primary_metric: str = f"ndcg_at_{CUT}"
    chosen: tuple[str, ...] = (f"ndcg_at_{CUT}", f"mrr_at_{CUT}")

    kind = "graded"
    columns = ("prediction", "label", "query")

    def outcomes(self, output: Output, batch: Batch) -> Mapping[str, jax.Array]:
        return {**super().outcomes(output, batch), "query": batch_array(batch, "query")}

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        ranked = rankings(outcomes)
        reciprocal = float(np.mean([reciprocal_rank(relevance, CUT) for relevance in ranked]))
        return {f"ndcg_at_{CUT}": float(self.values(outcomes).mean()), f"mrr_at_{CUT}": reciprocal}

    def values(self, outcomes: Outcomes) -> np.ndarray:
        return np.asarray([ndcg(relevance, CUT) for relevance in rankings(outcomes)])


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
