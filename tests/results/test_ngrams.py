"""N-gram models: probabilities by hand, and orders that help."""

import math

import numpy as np
import pytest

from headjax.core.errors import ConfigError
from results.experiments.ngrams import ngram_losses

A, B, C = 0, 1, 2
TEXT = np.array([A, B, A, B, A, C])


def losses(example, order, train=(TEXT,), vocab_size=4):
    return ngram_losses(train, [np.array(example)], vocab_size, order)


def test_a_bigram_is_witten_bells_by_hand():
    # Unigrams: 6 tokens of 3 kinds, so P(b) = (2 + 3 / 4) / 9. After a: b twice and c once, 2 kinds.
    unigram = (2 + 3 * 0.25) / (6 + 3)
    bigram = (2 + 2 * unigram) / (3 + 2)
    np.testing.assert_allclose(losses([A, B], 2), [-math.log(unigram), -math.log(bigram)], rtol=1e-12)


@pytest.mark.parametrize("history", [[A, B], [B, A], [3, A], [C, 3]])
def test_probabilities_after_any_history_sum_to_one(history):
    total = np.zeros(3)
    before = np.array(losses(history, 3)) * (len(history) - 1)
    for token in range(4):
        total += np.exp(-np.array(losses([*history, token], 3)) * len(history) + before)
    np.testing.assert_allclose(total, 1.0, rtol=1e-12)


def test_longer_histories_predict_a_text_with_memory_better():
    generator = np.random.default_rng(0)
    tokens = [0, 1]
    for _ in range(5000):  # the next token is the one before the last, nine times of ten
        tokens.append(tokens[-2] if generator.random() < 0.9 else int(generator.integers(8)))
    found = losses(tokens[4000:], 3, [np.array(tokens[:4000])], 8)
    assert found[2] < 0.6 * min(found[:2])
    assert found[:2] == losses(tokens[4000:], 2, [np.array(tokens[:4000])], 8)


def test_no_n_gram_reaches_over_the_end_of_an_example():
    # B is never followed by anything, so after it only the unigrams count.
    unigram, bigram = losses([B, C], 2, [np.array([A, B]), np.array([C, C])], 3)
    assert unigram == bigram


def test_an_order_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"^order: "):
        losses([A], 4, vocab_size=2**20)
