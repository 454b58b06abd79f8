from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

from headjax.models.beam import beam_search
from headjax.models.generation import generate
from tests import tiny
from tests.closeness import assert_close
from tests.models.test_encoder_decoder import translation

VOCABULARY, LONGEST, END = 4, 3, 1
SOURCES = {"input_ids": np.array([[2, 3, 1], [3, 3, 0]]), "attention_mask": np.array([[1, 1, 1], [1, 1, 0]])}


@pytest.fixture(scope="module")
def model():
    return tiny.model(translation(vocab_size=VOCABULARY, num_layers=1))


def every_hypothesis(model, penalty):
    """Score of every token sequence that ends, or is as long as allowed, for each source: by brute force."""
    sequences = [
        tokens
        for length in range(1, LONGEST + 1)
        for tokens in itertools.product(range(VOCABULARY), repeat=length)
        if END not in tokens[:-1] and (tokens[-1] == END or length == LONGEST)
    ]
    padded = np.array([[*tokens, *[0] * (LONGEST - len(tokens))] for tokens in sequences])
    scores = []
    for row in range(2):
        source = {name: np.repeat(array[row : row + 1], len(sequences), axis=0) for name, array in SOURCES.items()}
        inputs = np.concatenate([np.full((len(sequences), 1), 3), padded[:, :-1]], axis=1)
        log = np.asarray(jax.nn.log_softmax(model(source | {"decoder_input_ids": inputs}).logits, axis=-1))
        chosen = np.take_along_axis(log, padded[..., None], axis=-1)[..., 0]
        scores.append([chosen[i, : len(t)].sum() / len(t) ** penalty for i, t in enumerate(sequences)])
    return padded, np.array(scores)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_wide_beams_find_the_best_hypotheses_of_all(model, penalty):
    """With as many beams as there are unfinished hypotheses the search is exhaustive."""
    sequences, scores = every_hypothesis(model, penalty)
    found = beam_search(model, SOURCES, beams=20, max_new_tokens=LONGEST, end_token=END, length_penalty=penalty)
    for row in range(2):
        order = np.argsort(-scores[row])[:5]
        assert_close(found.scores[row, :5], scores[row][order], sums=tiny.SUMS)
        np.testing.assert_array_equal(found.tokens[row, :5], sequences[order])


def test_one_beam_is_greedy(model):
    """Unless greedy ends early, where the beam may find a longer hypothesis of a better mean."""
    greedy = generate(model, SOURCES, max_new_tokens=5)
    found = beam_search(model, SOURCES, beams=1, max_new_tokens=5, end_token=VOCABULARY)
    np.testing.assert_array_equal(found.tokens[:, 0], greedy.tokens)
    assert_close(found.scores[:, 0] * 5, greedy.log_probability, sums=tiny.SUMS)
