"""Patterns of attention are fitted where theorem 1 of Bhojanapalli et al. (2020) says so, here of a few tokens."""

import json

import jax
import numpy as np

from docs.measures import Found
from docs.patterns import fits_from_the_length_on, fitted, measure, table


def test_the_fit_is_the_attention_of_the_maps():
    shapes = [(1, 6, 3), (1, 6, 3), (1, 4, 6)]
    query, key, inputs = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes))
    logits = (inputs[0] @ query[0]) @ (inputs[0] @ key[0]).T / np.sqrt(3)
    np.testing.assert_allclose(fitted(query, key, inputs)[0], jax.nn.softmax(logits), atol=1e-6)


def test_heads_as_large_as_the_length_fit_and_small_ones_do_not():
    found = measure((1, 4), tokens=4, width=8, steps=1000)
    soft = {row["size"]: row["kl"] for row in found["rows"] if row["pattern"] == "soft"}
    assert max(soft[4]) < 1e-4
    assert min(soft[1]) > 1e-2


def test_the_table_and_the_claim_say_it(tmp_path, monkeypatch):
    rows = [
        {"pattern": kind, "size": size, "kl": kl}
        for kind in ("soft", "peaked")
        for size, kl in ((2, [0.02, 0.04]), (4, [-1e-9, 2e-8]))
    ]
    found = {"tokens": 4, "seeds": 2, "rows": rows}
    (tmp_path / "found.json").write_text(json.dumps(found))
    monkeypatch.setattr("docs.measures.RAW", tmp_path)
    assert "| 2 | 0.03 (0.02 to 0.04) | 0.03 (0.02 to 0.04) |\n| 4 | below 1e-6 | below 1e-6 |" in table(found)
    number = "below 1e-6 nats a token from the length on, at least 0.02 up to half of it"
    assert fits_from_the_length_on("found", "soft", 1e-3) == Found(number, "held")
    assert fits_from_the_length_on("found", "soft", 0.03) == Found(number, "did not hold")
