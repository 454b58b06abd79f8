"""Experiments: shapes of models, heads that are needed by construction, and methods of shrinking."""

import numpy as np
import pytest

import headjax
from results.experiments.ground_truth import SETTINGS, auroc, induction_model, repetitions
from results.experiments.ground_truth import measure as measure_orders


@pytest.mark.parametrize("name", ["quiet", "certain", "saturated"])
def test_the_two_heads_and_no_others_are_needed(name):
    model, needed = induction_model(SETTINGS[name], seed=0)
    batch = repetitions(16, seed=0)
    wanted = batch["labels"][:, 1:]

    def right(one) -> float:
        predicted = np.asarray(one(batch).logits)[:, :-1].argmax(axis=-1)
        return float((predicted == wanted)[wanted >= 0].mean())

    others = [head for head in headjax.all_heads(model.config) if head not in needed]
    assert right(model) == right(headjax.prune(model, others)) == 1.0
    for head in needed:
        assert right(headjax.prune(model, [head])) < 0.5


def test_the_oracle_ranks_them_first_and_a_reversed_order_last():
    (row,) = measure_orders(["ablation"], ["quiet"], seeds=1)
    assert row.value == 1.0
    heads = [headjax.HeadId("decoder", 0, head) for head in range(4)]
    assert auroc(heads, frozenset(heads[:1])) == 0.0
    assert auroc(heads, frozenset(heads[1:2])) == pytest.approx(1 / 3)
