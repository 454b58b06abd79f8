"""The judge of what an embedding model's other uses keep, on vectors whose scores are known."""

import numpy as np
import pytest

import headjax
from results.uses import uses_of


@pytest.fixture(scope="module")
def uses(data_dir):
    return dict(uses_of(data_dir, np.random.default_rng(0)))


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_vectors_without_meaning_are_chance(uses):
    rng = np.random.default_rng(1)
    chance = {"sts": 0.0, "paraphrase": 0.5, "search": 0.0, "topic": 0.05, "sentiment": 0.5}
    for name, expected in chance.items():
        use = uses[name]
        assert use.number(use.judge(unit(rng.standard_normal((len(use.texts), 8))))) == pytest.approx(
            expected, abs=0.08
        ), name


def test_vectors_of_words_find_paragraphs_and_order_pairs(uses):
    """Each text's vector is a sum of fixed random vectors of its words."""
    words = {}
    rng = np.random.default_rng(2)

    def vector(text):
        return (
            sum(words.setdefault(word, rng.standard_normal(256)) for word in text.lower().split() if len(word) > 4)
            + 1e-6
        )

    found = {name: np.stack([np.ones(256) * vector(text) for text in uses[name].texts]) for name in ("sts", "search")}
    assert uses["search"].number(uses["search"].judge(unit(found["search"]))) > 0.3
    outcomes = uses["sts"].judge(unit(found["sts"]))
    assert uses["sts"].number(outcomes) > 0.4
    same = headjax.paired_bootstrap(outcomes, outcomes, uses["sts"].number)
    assert same.low == same.high == 0.0
    noise = uses["sts"].judge(unit(rng.standard_normal(found["sts"].shape)))
    change = headjax.paired_bootstrap(noise, outcomes, uses["sts"].number)
    assert 0.2 < change.low < change.high
