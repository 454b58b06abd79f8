from __future__ import annotations

import numpy as np
import pytest

from headjax.data.bert_text import next_sentence_pairs


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


def test_same_generator_same_pairs(documents):
    first, again = (list(next_sentence_pairs(documents, 0, 61, 0.1, np.random.default_rng(5))) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.first, other.first)
        np.testing.assert_array_equal(one.second, other.second)


def test_one_sentence_each():
    documents = [[np.asarray([1, 2, 3])], [np.asarray([7])]]
    (pair,) = next_sentence_pairs(documents, 0, 10, 0.0, np.random.default_rng(0))
    assert pair.first.tolist() == [1, 2, 3]
    assert pair.second.tolist() == [7]
    assert not pair.follows
