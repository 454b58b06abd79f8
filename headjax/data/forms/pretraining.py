"""BERT's pre-training: sentences, pairs of them, masked tokens (Devlin et al. 2019, section 3.1), and their form."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from headjax.core.class_names import IGNORED
from headjax.core.errors import DataError, require
from headjax.core.fields import Fraction, Rate, Size
from headjax.core.serialize import kind
from headjax.data.examples import Drawn, ExampleSource, Record, Records, padded
from headjax.data.forms.form import Encoded, Form, Seed
from headjax.data.rows import Row, Split, pieces
from headjax.tokenizers.tokenizer import Tokenizer

ABBREVIATIONS = frozenset(
    """
    mr mrs ms dr prof rev st sr jr gen col capt lt sgt hon gov sen rep messrs mme mlle vs etc e.g i.e cf no vol pp fig
    inc ltd co corp jan feb mar apr jun jul aug sep sept oct nov dec a.m p.m u.s u.k
    """.split()  # noqa: SIM905 (a list of one word a line would hide the code)
)
"""Words, without their full stop, after which a sentence continues."""

_CLOSING, _OPENING = "\"'\u2019\u201d)\\]", "\"'\u2018\u201c(\\["
_END = re.compile(rf"([.!?]+)([{_CLOSING}]*)\s+(?=[{_OPENING}]?([^\W_]))")
_LAST_WORD = re.compile(r"([^\W_]+(?:\.[^\W_]+)*)$")


def sentences(text: str) -> list[str]:
    """Return the sentences of a text that are not blank; white space becomes single spaces.

    A sentence ends at a blank line, and at `.`, `!` or `?` (and closing quotation marks and brackets) before white
    space and a capital or a digit, unless the full stop belongs to an abbreviation or an initial.
    """
    parts = []
    for paragraph in re.split(r"\n\s*\n", text):
        plain = " ".join(paragraph.split())
        start = 0
        for match in _END.finditer(plain):
            begins = match[3].isupper() or match[3].isdecimal()
            word = _LAST_WORD.search(plain[start : match.start()]) if match[1] == "." else None
            abbreviated = word and (word[1].lower() in ABBREVIATIONS or (len(word[1]) == 1 and word[1].isupper()))
            if not begins or abbreviated:
                continue
            parts.append(plain[start : match.end(2)])
            start = match.end()
        if plain[start:]:
            parts.append(plain[start:])
    return parts


RANDOM_NEXT = 0.5  # share of the pairs of several sentences whose second part is taken from another document
Sentences = Sequence[np.ndarray]  # a document as the token ids `[tokens]` of its sentences


def next_sentence_pairs(
    documents: Sequence[Sentences], number: int, tokens: int, shorter: float, generator: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Yield the pairs into which one document is cut, as long as possible: both parts, and whether the second follows.

    Sentences are taken until they have `tokens` tokens, and divided at random into a first and a second part. With
    probability `RANDOM_NEXT`, and always for a single sentence, the second part is replaced by as much text of another
    document, from a random sentence on; the replaced sentences begin the next pair.
    """
    document = documents[number]
    place = 0
    while place < len(document):
        target = int(generator.integers(2, tokens + 1)) if generator.random() < shorter else tokens
        end = _end(document, place, target)
        cut = place + (1 if end - place == 1 else int(generator.integers(1, end - place)))
        first = np.concatenate(document[place:cut])
        follows = end - place > 1 and generator.random() >= RANDOM_NEXT
        if follows:
            second, place = np.concatenate(document[cut:end]), end
        else:
            other = int(generator.integers(len(documents) - 1))
            other_document = documents[other + (other >= number)]
            start = int(generator.integers(len(other_document)))
            second = np.concatenate(other_document[start : _end(other_document, start, max(1, target - len(first)))])
            place = cut
        yield (*_shortened(first, second, tokens, generator), follows)


def _end(document: Sentences, start: int, tokens: int) -> int:
    """Return the end of the first sentences from `start` on that together have `tokens` tokens; at most the last."""
    reached = np.cumsum([len(sentence) for sentence in document[start:]])
    return min(start + 1 + int(np.searchsorted(reached, tokens)), len(document))


def _shortened(
    first: np.ndarray, second: np.ndarray, tokens: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pair cut to `tokens`: tokens are removed from the longer part, at a random end."""
    for front in generator.random(max(len(first) + len(second) - tokens, 0)) < 0.5:
        part = slice(1, None) if front else slice(-1)
        first, second = (first[part], second) if len(first) > len(second) else (first, second[part])
    return first, second


class MaskingVocabulary(NamedTuple):
    """The mask token, whether each token is special `[vocabulary]`, and the ids of the ordinary tokens."""

    mask: int
    special: np.ndarray
    ordinary: np.ndarray


def masking_vocabulary(tokenizer: Tokenizer) -> MaskingVocabulary:
    """Return the special and ordinary tokens of a tokenizer."""
    mask = tokenizer.special_id("mask_token")
    special = np.zeros(tokenizer.vocab_size, bool)
    special[[tokenizer.special_id(role) for role, _ in tokenizer.special]] = True
    for number, token in tokenizer.backend.get_added_tokens_decoder().items():
        special[number] |= token.special
    ordinary = np.flatnonzero(~special).astype(np.int32)
    if not ordinary.size:
        raise DataError("tokenizer: it has only special tokens")
    return MaskingVocabulary(mask, special, ordinary)


CHAPTER = 50_000  # number of characters after which a long document (a book) is continued as another one
SPECIAL = 3  # number of special tokens of an example: [CLS] a [SEP] b [SEP]


@kind("pretraining_pairs")
@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingForm(Form):
    """`text` of documents, cut into sentences that are joined to pairs, with some tokens masked.

    An example is `[CLS] a [SEP] b [SEP]` with `token_type_ids`, `next_sentence_label` (0 if b follows a, 1 if b is from
    another document) and `labels`, -100 except at the masked tokens: min(max_predictions, max(1, round(rate n))) of n
    tokens, of which 80% become the mask token, 10% a random token and 10% stay; special tokens are neither masked nor
    drawn. Masks are drawn again each time training reads an example (Liu et al. 2019, RoBERTa, section 4.1); those to
    evaluate on are drawn once.

    Attributes:
        length: greatest number of tokens of an example.
        max_predictions: greatest number of masked tokens of an example.
        rate: share of the tokens that are masked.
        shorter: share of the examples that are made shorter at random.
    """

    fields: ClassVar = {"text": "text"}
    measure: ClassVar = "masked_and_next"

    length: Size = 128
    max_predictions: Size = 20
    rate: Fraction = 0.15
    shorter: Rate = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.length >= SPECIAL + 2, "length", f"must be at least {SPECIAL + 2}, got {self.length}")

    def check(self, tokenizer: Tokenizer) -> None:
        special = [tokenizer.special_id(role) for role in ("cls_token", "sep_token", "mask_token")]
        joined = tokenizer.backend.encode("a", "a").ids
        if joined.count(special[0]) != 1 or joined.count(special[1]) != 2:
            raise DataError("tokenizer: it does not join pairs as [CLS] a [SEP] b [SEP], so it is not that of a BERT")

    def encode(self, tokenizer: Tokenizer, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        cls, sep = (np.asarray([tokenizer.special_id(role)], np.int32) for role in ("cls_token", "sep_token"))
        vocabulary, documents = masking_vocabulary(tokenizer), _documents(tokenizer, rows)
        records: list[Record] = []
        for number in range(len(documents)):
            generator = np.random.default_rng([*seed, 0, number])
            pairs = next_sentence_pairs(documents, number, self.length - SPECIAL, self.shorter, generator)
            for first, second, follows in pairs:
                record = {
                    "input_ids": np.concatenate([cls, first, sep, second, sep]),
                    "first": np.asarray([len(first) + 2], np.int32),
                    "next_sentence_label": np.asarray([0 if follows else 1], np.int32),
                }
                if split == "validation":
                    record |= self.masked(record["input_ids"], vocabulary, generator)
                records.append(record)
        random = sum(int(record["next_sentence_label"][0]) for record in records)
        tokens = sum(map(self.tokens, records))
        return Encoded(records, {"documents": len(rows), "tokens": tokens, "random_next": random})

    def masked(
        self, ids: np.ndarray, vocabulary: MaskingVocabulary, generator: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Return a sequence with some of its tokens masked, their `positions`, and their `ids` before."""
        candidates = np.flatnonzero(~vocabulary.special[ids])
        count = min(self.max_predictions, max(1, round(self.rate * len(ids))), len(candidates))
        positions = np.sort(generator.permutation(candidates)[:count])
        fate = generator.random(count)
        drawn = vocabulary.ordinary[generator.integers(len(vocabulary.ordinary), size=count)]
        hidden = ids.copy()
        hidden[positions] = np.select([fate < 0.8, fate < 0.9], [vocabulary.mask, drawn], ids[positions])
        return {"input_ids": hidden, "positions": positions, "ids": ids[positions]}

    def examples(self, tokenizer: Tokenizer, records: Records, sizes: np.ndarray, split: Split) -> ExampleSource:
        return Drawn(records, functools.partial(self.pair, masking_vocabulary(tokenizer), tokenizer.padding_id))

    def pair(
        self, vocabulary: MaskingVocabulary, padding: int, record: Record, generator: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Return a record as an example; one that is not masked on disk is masked now."""
        if "positions" not in record:
            record = {**record, **self.masked(record["input_ids"], vocabulary, generator)}
        tokens, first = len(record["input_ids"]), int(record["first"][0])
        labels = np.full(self.length, IGNORED, np.int32)
        labels[record["positions"]] = record["ids"]
        return {
            "input_ids": padded(record["input_ids"], self.length, padding),
            "token_type_ids": padded(np.repeat([0, 1], [first, tokens - first]), self.length),
            "attention_mask": padded(np.ones(tokens), self.length),
            "labels": labels,
            "next_sentence_label": record["next_sentence_label"][0],
        }


def _documents(tokenizer: Tokenizer, rows: Sequence[Row]) -> list[Sentences]:
    """Return the rows as documents of encoded sentences: at least two documents, or none."""
    chapters = (chapter for row in rows for chapter in pieces(row.values["text"], CHAPTER))
    encoded = (tokenizer.encode(sentences("".join(chapter))) for chapter in chapters)
    documents: list[Sentences] = [*filter(None, ([ids for ids in each if len(ids)] for each in encoded))]
    if len(documents) == 1:
        middle = len(documents[0]) // 2
        documents = [documents[0][:middle], documents[0][middle:]] if middle else []
    return documents
