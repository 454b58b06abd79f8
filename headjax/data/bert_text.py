"""Text of BERT's pre-training: sentences, pairs of them, masked tokens (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from headjax.core.errors import DataError
from headjax.core.fields import Checked, Fraction, Size
from headjax.tokenizers.tokenizer import Tokenizer

ABBREVIATIONS = frozenset(
    """
    mr mrs ms dr prof rev st sr jr gen col capt lt sgt hon gov sen rep messrs mme mlle vs etc e.g i.e cf no vol pp fig
    inc ltd co corp jan feb mar apr jun jul aug sep sept oct nov dec a.m p.m u.s u.k
    """.split()  # noqa: SIM905 (a list of one word a line would hide the code)
)
"""Words, without their full stop, after which a sentence continues."""

_CLOSING, _OPENING = "\"'\u2019\u201d)\\]", "\"'\u2018\u201c(\\["
_END = re.compile(rf"([.!?]+)([{_CLOSING}]*)\s+(?=[{_OPENING}]?[A-Z0-9])")
_LAST_WORD = re.compile(r"([^\W_]+(?:\.[^\W_]+)*)$")


def sentences(text: str) -> list[str]:
    """Return the sentences of a text that are not blank; white space becomes single spaces.

    A sentence ends at a blank line, and at `.`, `!` or `?` (and closing quotation marks and brackets) before white
    space and a capital or a digit, unless the full stop belongs to an abbreviation or an initial.
    """
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        plain = " ".join(paragraph.split())
        start = 0
        for match in _END.finditer(plain):
            if match[1] == "." and _abbreviated(plain[start : match.start()]):
                continue
            found.append(plain[start : match.end(2)])
            start = match.end()
        if plain[start:]:
            found.append(plain[start:])
    return found


def _abbreviated(before: str) -> bool:
    """Return whether the word before a full stop is an abbreviation or an initial."""
    word = _LAST_WORD.search(before)
    return word is not None and (word[1].lower() in ABBREVIATIONS or (len(word[1]) == 1 and word[1].isupper()))


RANDOM_NEXT = 0.5
"""Share of the pairs of several sentences whose second part is taken from another document."""

Sentences = Sequence[np.ndarray]
"""A document as the token ids `[tokens]` of its sentences."""


class Pair(NamedTuple):
    """Two parts of text.

    Attributes:
        first, second: token ids, `[tokens]` each.
        follows: whether the second part follows the first in their document; else it is from another document.
    """

    first: np.ndarray
    second: np.ndarray
    follows: bool


def next_sentence_pairs(
    documents: Sequence[Sentences], number: int, tokens: int, shorter: float, generator: np.random.Generator
) -> Iterator[Pair]:
    """Yield the pairs into which one document is cut, as long as possible.

    Sentences are taken until they have `tokens` tokens, and divided at random into a first and a second part. With
    probability `RANDOM_NEXT`, and always for a single sentence, the second part is replaced by as much text of another
    document, from a random sentence on; the replaced sentences begin the next pair.

    Args:
        documents: all documents, at least two; each has sentences, and each sentence has tokens.
        number: the document to cut.
        tokens: greatest number of tokens of a pair, without special tokens; at least 2.
        shorter: share of the pairs that aim at a random length below that.
        generator: source of randomness.
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
    """Return sentences of another document from a random one on, with at least `tokens` tokens if it has them."""
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
    """Return the pair cut to `tokens`: tokens are removed from the longer part, at a random end."""
    parts = [[0, len(first)], [0, len(second)]]
    sizes = [len(first), len(second)]
    excess = sum(sizes) - tokens
    fronts = generator.random(max(excess, 0)) < 0.5
    for front in fronts:
        longer = 0 if sizes[0] > sizes[1] else 1
        sizes[longer] -= 1
        parts[longer][0 if front else 1] += 1 if front else -1
    return first[slice(*parts[0])], second[slice(*parts[1])]


class Masked(NamedTuple):
    """A sequence with some tokens masked.

    Attributes:
        input_ids: `[tokens]` the masked sequence.
        positions: `[predictions]` positions of the tokens to predict, ascending.
        labels: `[predictions]` the original tokens there.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class Masking(Checked):
    """Masks min(max_predictions, max(1, round(rate n))) tokens of a sequence of n, which are to be predicted.

    80% of them become the mask token, 10% a random token and 10% stay. Special tokens are neither masked nor drawn.

    Attributes:
        rate: share of the tokens that are masked.
        max_predictions: greatest number of masked tokens of a sequence.
    """

    rate: Fraction = 0.15
    max_predictions: Size = 20

    def __call__(self, ids: np.ndarray, vocabulary: MaskingVocabulary, generator: np.random.Generator) -> Masked:
        """Return a sequence with some of its tokens masked.

        Args:
            ids: `[tokens]`, special tokens included, without padding.
            vocabulary: see `masking_vocabulary`.
            generator: source of randomness.
        """
        candidates = np.flatnonzero(~vocabulary.special[ids])
        wanted = min(self.max_predictions, max(1, round(self.rate * len(ids))), len(candidates))
        positions = np.sort(generator.permutation(candidates)[:wanted])
        fate = generator.random(wanted)
        drawn = vocabulary.ordinary[generator.integers(len(vocabulary.ordinary), size=wanted)]
        hidden = ids.copy()
        hidden[positions] = np.select([fate < 0.8, fate < 0.9], [vocabulary.mask, drawn], ids[positions])
        return Masked(hidden, positions, ids[positions])


class MaskingVocabulary(NamedTuple):
    """Special and ordinary tokens of a vocabulary.

    Attributes:
        mask: id of the mask token.
        special: `[vocabulary]` True at special tokens.
        ordinary: ids of the other tokens.
    """

    mask: int
    special: np.ndarray
    ordinary: np.ndarray


def masking_vocabulary(tokenizer: Tokenizer) -> MaskingVocabulary:
    """Return the special and ordinary tokens of a tokenizer.

    Raises:
        DataError: a tokenizer without a mask token, or with special tokens only.
    """
    mask = tokenizer.special_id("mask_token")
    special = np.zeros(tokenizer.vocab_size, bool)
    special[[tokenizer.special_id(role) for role, _ in tokenizer.special]] = True
    for number, token in tokenizer.backend.get_added_tokens_decoder().items():
        special[number] |= token.special
    ordinary = np.flatnonzero(~special).astype(np.int32)
    if not ordinary.size:
        raise DataError("tokenizer: it has only special tokens")
    return MaskingVocabulary(mask, special, ordinary)
