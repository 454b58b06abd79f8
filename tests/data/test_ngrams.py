"""N-gram models: probabilities by hand, sums to one, and orders that help."""

import numpy as np
import pytest

from headjax.core.errors import ConfigError
from headjax.data.ngrams import NGrams

A, B, C = 0, 1, 2
TEXT = np.array([A, B, A, B, A, C])


def test_a_bigram_is_witten_bells_by_hand():
    model = NGrams([TEXT], vocab_size=4, order=2)
    # Unigrams: 6 tokens of 3 kinds, so P(b) = (2 + 3 / 4) / 9. After a: b twice and c once, 2 kinds.
    unigram = (2 + 3 * 0.25) / (6 + 3)
    bigram = (2 + 2 * unigram) / (3 + 2)
    found = model.log_probabilities(np.array([A, B]))
    np.testing.assert_allclose(found, [np.log(bigram)], rtol=1e-12)


def test_a_history_never_seen_leaves_the_lower_order():
    model = NGrams([TEXT], vocab_size=4, order=3)
    lower = NGrams([TEXT], vocab_size=4, order=1)
    example = np.array([3, 3, B])
    np.testing.assert_allclose(model.log_probabilities(example)[1:], lower.log_probabilities(example)[1:], rtol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("history", [[A, B], [B, A], [3, A], [C, 3]])
def test_probabilities_after_any_history_sum_to_one(order, history):
    model = NGrams([TEXT, TEXT[::-1]], vocab_size=4, order=order)
    total = sum(np.exp(model.log_probabilities(np.array([*history, token]))[-1]) for token in range(4))
    assert total == pytest.approx(1.0, abs=1e-12)


def test_longer_histories_predict_a_text_with_memory_better():
    generator = np.random.default_rng(0)
    tokens = [0, 1]
    for _ in range(5000):  # the next token is the one before the last, nine times of ten
        tokens.append(tokens[-2] if generator.random() < 0.9 else int(generator.integers(8)))
    train, held = np.array(tokens[:4000]), np.array(tokens[4000:])
    losses = NGrams([train], 8, order=3).losses([held])
    assert losses[2] < 0.6 * min(losses[:2])
    # One model of three tokens holds those of one and two.
    assert losses == pytest.approx([NGrams([train], 8, order).loss([held]) for order in (1, 2, 3)], rel=1e-12)


def test_no_n_gram_reaches_over_the_end_of_an_example():
    model = NGrams([np.array([A, B]), np.array([C, C])], vocab_size=3, order=2)
    # B is never followed by anything, so after it only the unigrams count.
    unigram = NGrams([np.array([A, B]), np.array([C, C])], vocab_size=3, order=1)
    found, lower = (one.log_probabilities(np.array([B, C])) for one in (model, unigram))
    np.testing.assert_allclose(found, lower)


def test_an_order_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="order: must be from 1 to 3, got 4"):
        NGrams([TEXT], vocab_size=2**20, order=4)
