from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.data.forms.pretraining import Masking, masking_vocabulary, next_sentence_pairs, sentences
from headjax.tokenizers.learned import byte_tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests.data.vocabulary import SPECIAL, WORDS, write_vocabulary


@pytest.mark.parametrize(
    "text, expected",
    [
        ("One.  Two\nis it? Three!", ["One.", "Two is it?", "Three!"]),
        ("A heading\n\nIts text. More", ["A heading", "Its text.", "More"]),
        ("Mr. Bingley met Dr. J. Watson at 3 p.m. He left.", ["Mr. Bingley met Dr. J. Watson at 3 p.m. He left."]),
        ("It cost 3.5 dollars. 7 were left.", ["It cost 3.5 dollars.", "7 were left."]),
        ('"Why?" he asked. "So."', ['"Why?" he asked.', '"So."']),
        ("“Why? So.” (Really.) Yes...  No", ["“Why?", "So.”", "(Really.)", "Yes...", "No"]),
        ("see e.g. Figure 2. then on", ["see e.g. Figure 2. then on"]),
        (" \n \n", []),
    ],
)
def test_sentences(text, expected):
    assert sentences(text) == expected


def test_nothing_is_lost(data_dir):
    text = (data_dir / "lm" / "gutenberg" / "pride_and_prejudice.txt").read_text(encoding="utf-8")
    found = sentences(text)
    assert " ".join(found).split() == text.split()
    assert 4000 < len(found) < 12000
    assert not any(one.endswith(("Mr.", "Mrs.")) for one in found)


@pytest.fixture(scope="module")
def documents():
    """Twelve documents in which no token occurs twice, so that each says where it comes from: 100,000 d + place."""
    generator = np.random.default_rng(0)
    found = []
    for number in range(12):
        ends = np.cumsum(generator.integers(1, 30, size=100))
        found.append(np.split(np.arange(ends[-1], dtype=np.int32) + 100_000 * number, ends[:-1]))
    return found


@pytest.fixture(scope="module")
def pairs(documents):
    generator = np.random.default_rng(1)
    return [
        (number, pair)
        for number in range(len(documents))
        for pair in next_sentence_pairs(documents, number, 61, 0.1, generator)
    ]


def test_second_parts_follow_or_are_of_another_document(pairs):
    for number, pair in pairs:
        assert {*pair.first // 100_000} == {number}
        assert (np.diff(pair.first) == 1).all()
        assert (np.diff(pair.second) == 1).all()
        (origin,) = {*pair.second // 100_000}
        assert (origin == number) == pair.follows
        if pair.follows and len(pair.first) + len(pair.second) < 61:
            assert pair.second[0] == pair.first[-1] + 1


def test_lengths_and_shares(pairs):
    sizes = np.asarray([len(pair.first) + len(pair.second) for _, pair in pairs])
    assert sizes.max() == 61
    assert all(len(pair.first) and len(pair.second) for _, pair in pairs)
    assert 0.8 < np.mean(sizes > 40) < 1.0  # but for those made shorter at random and the ends of documents
    follows = np.mean([pair.follows for _, pair in pairs])
    assert len(pairs) > 300
    assert 0.35 < follows < 0.55  # a half, less those of one sentence, which nothing can follow


def test_the_text_is_gone_through(pairs, documents):
    """But for what was cut off to fit, every sentence is in some pair of its own document."""
    read = np.concatenate(
        [part for number, pair in pairs for part in (pair.first, pair.second) if part[0] // 100_000 == number]
    )
    everything = np.concatenate([sentence for document in documents for sentence in document])
    assert np.isin(everything, read).mean() > 0.8


def test_one_sentence_each():
    documents = [[np.asarray([1, 2, 3])], [np.asarray([7])]]
    (pair,) = next_sentence_pairs(documents, 0, 10, 0.0, np.random.default_rng(0))
    assert pair.first.tolist() == [1, 2, 3]
    assert pair.second.tolist() == [7]
    assert not pair.follows


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return masking_vocabulary(wordpiece_tokenizer(write_vocabulary(tmp_path_factory.mktemp("vocabulary"))))


def test_special_tokens_are_known(vocabulary):
    assert np.flatnonzero(vocabulary.special).tolist() == list(range(len(SPECIAL)))
    assert vocabulary.ordinary.tolist() == list(range(len(SPECIAL), len(WORDS)))
    assert vocabulary.mask == WORDS.index("[MASK]")
    with pytest.raises(DataError, match="it has no mask_token"):
        masking_vocabulary(byte_tokenizer())


@pytest.mark.parametrize("tokens, most, wanted", [(3, 20, 1), (10, 20, 2), (100, 20, 15), (200, 20, 20), (200, 80, 30)])
def test_how_many_are_predicted(vocabulary, tokens, most, wanted):
    ids = np.full(tokens, 7, np.int32)
    ids[0], ids[-1] = 2, 3
    masked = Masking(max_predictions=most)(ids, vocabulary, np.random.default_rng(0))
    assert len(masked.positions) == len(masked.labels) == (1 if tokens == 3 else wanted)


def test_what_stands_there_instead(vocabulary):
    """80% mask, 10% random, 10% as it was, over 30,000 predictions; and nothing else changes."""
    generator = np.random.default_rng(1)
    rule = Masking(max_predictions=100)
    kinds = np.zeros(3, int)
    for _ in range(1000):
        ids = generator.integers(len(SPECIAL), len(WORDS), 200).astype(np.int32)
        ids[[0, 90, 199]] = 2, 3, 3
        masked = rule(ids, vocabulary, generator)
        assert not np.isin(masked.positions, [0, 90, 199]).any()
        np.testing.assert_array_equal(ids[masked.positions], masked.labels)
        rest = np.ones(200, bool)
        rest[masked.positions] = False
        np.testing.assert_array_equal(masked.input_ids[rest], ids[rest])
        now = masked.input_ids[masked.positions]
        assert (now[now < len(SPECIAL)] == vocabulary.mask).all()
        kinds += [
            (now == vocabulary.mask).sum(),
            ((now != vocabulary.mask) & (now != masked.labels)).sum(),
            (now == masked.labels).sum(),
        ]
    ordinary = len(WORDS) - len(SPECIAL)
    shares = np.asarray([0.8, 0.1 * (1 - 1 / ordinary), 0.1 + 0.1 / ordinary])  # a random token may be the right one
    assert kinds.sum() == 30_000
    np.testing.assert_allclose(kinds / 30_000, shares, atol=4 * np.sqrt(0.25 / 30_000))
