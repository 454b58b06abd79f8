"""Pairs of text for next-sentence prediction (Devlin et al. 2019, section 3.1 and their released code)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

RANDOM_NEXT = 0.5
"""Share of pairs, of those that could be followed, whose second part is from another document."""

Sentences = Sequence[np.ndarray]
"""A document: the token ids `[tokens]` of its sentences."""


class Pair(NamedTuple):
    """Two parts of text.

    Attributes:
        first, second: token ids, `[tokens]` each, together at most as many as asked for.
        follows: whether the second comes right after the first in their document; if not it is of another one.
    """

    first: np.ndarray
    second: np.ndarray
    follows: bool


def sentence_pairs(
    documents: Sequence[Sentences], number: int, tokens: int, shorter: float, generator: np.random.Generator
) -> Iterator[Pair]:
    """The pairs that one document is cut into, each as long as fits.

    Sentences are taken until `tokens` are reached, and cut at random into a first and a second part. With probability
    `RANDOM_NEXT`, and always when there is but one sentence, the second part is replaced by as much of another document
    from a random sentence on; the sentences that it takes the place of begin the next pair.

    Args:
        documents: all documents, at least two, none without sentences, no sentence without tokens.
        number: the document to cut.
        tokens: most of a pair, without special tokens; at least 2.
        shorter: share of pairs that aim at a random length below that.
        generator: what is drawn depends on it alone.
    """
    document = documents[number]
    place = 0
    while place < len(document):
        target = int(generator.integers(2, tokens + 1)) if generator.random() < shorter else tokens
        end, held = place, 0
        while end < len(document) and (end == place or held < target):
            held += len(document[end])
            end += 1
        cut = place + (1 if end - place == 1 else int(generator.integers(1, end - place)))
        first = np.concatenate(document[place:cut])
        follows = end - place > 1 and generator.random() >= RANDOM_NEXT
        if follows:
            second, place = np.concatenate(document[cut:end]), end
        else:
            second, place = _from_another(documents, number, max(1, target - len(first)), generator), cut
        yield Pair(*_shortened(first, second, tokens, generator), follows)


def _from_another(
    documents: Sequence[Sentences], number: int, tokens: int, generator: np.random.Generator
) -> np.ndarray:
    """Sentences of another document from a random one on, at least so many tokens where it has them."""
    other = int(generator.integers(len(documents) - 1))
    document = documents[other + (other >= number)]
    start = end = int(generator.integers(len(document)))
    held = 0
    while end < len(document) and (end == start or held < tokens):
        held += len(document[end])
        end += 1
    return np.concatenate(document[start:end])


def _shortened(
    first: np.ndarray, second: np.ndarray, tokens: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The pair with tokens taken off the longer part, from its front or its back at random, until it fits."""
    parts = [[0, len(first)], [0, len(second)]]
    sizes = [len(first), len(second)]
    excess = sum(sizes) - tokens
    fronts = generator.random(max(excess, 0)) < 0.5
    for front in fronts:
        longer = 0 if sizes[0] > sizes[1] else 1
        sizes[longer] -= 1
        parts[longer][0 if front else 1] += 1 if front else -1
    return first[slice(*parts[0])], second[slice(*parts[1])]
