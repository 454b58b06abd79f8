from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import ConfigError, DataError
from headjax.data.bert_text import Masking, masking_vocabulary
from headjax.tokenizers.learned import byte_tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests.data.vocabulary import SPECIAL, WORDS, write_vocabulary


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


def test_impossible_rules():
    with pytest.raises(ConfigError, match=r"^rate: must be within"):
        Masking(rate=1.0)
    with pytest.raises(ConfigError, match=r"^max_predictions: must be"):
        Masking(max_predictions=0)
