"""Entities: the measure of tagged words, precision, recall and F1 of whole entities as `seqeval` counts them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.evaluation.measures import Measure, Outcome, Outcomes
from headjax.models.config import Batch, Output
from headjax.models.inputs import batch_array
from headjax.models.tasks import TokenClassification

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

    An `I-` after `O` or another type begins an entity. Without such prefixes the tags' accuracy is the headline.
    """

    headline: str = "entity_f1"
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not any(name[:2] in ("B-", "I-", "E-", "S-") for name in self.names):
            object.__setattr__(self, "headline", "tag_accuracy")

    takes = (TokenClassification,)

    def outcomes(self) -> Mapping[str, Outcome]:
        kinds: tuple[Literal["right", "predicted", "given"], ...] = ("right", "predicted", "given")
        return {**{name: Count(name, self.names) for name in kinds}, "tags": right_tags}

    def metrics(self, outcomes: Outcomes) -> dict[str, float]:
        right, predicted, given = (float(outcomes[name].sum()) for name in ("right", "predicted", "given"))
        accuracy = {"tag_accuracy": float(outcomes["tags"].sum() / outcomes["targets"].sum())}
        if self.headline == "tag_accuracy":
            return accuracy
        return {
            "entity_f1": 2.0 * right / max(predicted + given, 1.0),
            "entity_precision": right / max(predicted, 1.0),
            "entity_recall": right / max(given, 1.0),
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
        judged, tags = labels >= 0, tags_of(self.names)
        predicted = entities(jnp.argmax(output.require_logits(), axis=-1), judged, tags)
        given = entities(jnp.maximum(labels, 0), judged, tags)
        same = predicted.begins & given.begins & (predicted.end == given.end) & (predicted.kind == given.kind)
        found = {"right": same, "predicted": predicted.begins, "given": given.begins}[self.which]
        return found.sum(axis=1).astype(jnp.float32)


def tags_of(names: Sequence[str]) -> Tags:
    """Return the tables of tags by name."""
    parts = [
        name.partition("-") if name[1:2] == "-" else (name[:1] if name == "O" else "I", "", name) for name in names
    ]
    kinds = sorted({kind for _, _, kind in parts})
    prefix = [PREFIXES.index(one) if one in PREFIXES else PREFIXES.index("I") for one, _, _ in parts]
    return Tags(np.asarray(prefix), np.asarray([kinds.index(kind) for _, _, kind in parts]))


def entities(classes: jax.Array, judged: jax.Array, tags: Tags) -> Ends:
    """Return the entities of words with these classes, int `[batch, length]`; words that are not judged are passed."""
    length = classes.shape[1]
    places = jnp.arange(length)[None, :]
    before = jax.lax.cummax(jnp.where(judged, places, -1), axis=1)
    before = jnp.pad(before, ((0, 0), (1, 0)), constant_values=-1)[:, :length]  # the judged word before, or -1
    prefix, kind = jnp.asarray(tags.prefix)[classes], jnp.asarray(tags.kind)[classes]
    prior = jnp.where(before < 0, 0, jnp.take_along_axis(prefix, jnp.maximum(before, 0), axis=1))
    same = jnp.take_along_axis(kind, jnp.maximum(before, 0), axis=1) == kind
    outside, begin, _, end, single = range(len(PREFIXES))

    def one_of(values: jax.Array, *known: int) -> jax.Array:
        return jnp.isin(values, jnp.asarray(known))

    # The conditions of CoNLL's evaluation (conlleval.pl) for a chunk to begin at a word, and to end before it.
    begins = one_of(prefix, begin, single) | (one_of(prior, end, single, outside) & (prefix != outside))
    begins = judged & (prefix != outside) & (begins | ~same)
    closes = one_of(prior, end, single) | one_of(prefix, begin, single, outside) | ~same
    closes = judged & (prior != outside) & closes
    # An entity ends with the last judged word before the first word that closes it, or with the sentence.
    last = jnp.where(judged, places, -1).max(axis=1, keepdims=True)
    closing = jnp.concatenate([jnp.where(closes, before, last)[:, 1:], last], axis=1)
    return Ends(begins, jax.lax.cummin(closing, axis=1, reverse=True), kind)
