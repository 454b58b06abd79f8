"""Models with two heads that are needed, by construction."""

from __future__ import annotations

import numpy as np
import pytest

from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.named_orders import ORDERS
from headjax.heads.pruning import prune
from results.experiments.ground_truth import SETTINGS, auroc, induction_model, measure, repetitions
from results.table import read


@pytest.mark.parametrize("name", ["quiet", "certain", "saturated"])
def test_the_two_heads_and_no_others_are_needed(name):
    model, needed = induction_model(SETTINGS[name], seed=0)
    batch = repetitions(16, seed=0)
    wanted = batch["labels"][:, 1:]

    def right(one) -> float:
        predicted = np.asarray(one(batch).logits)[:, :-1].argmax(axis=-1)
        return float((predicted == wanted)[wanted >= 0].mean())

    others = [head for head in all_heads(model.config) if head not in needed]
    assert right(model) == right(prune(model, others)) == 1.0
    for head in needed:
        assert right(prune(model, [head])) < 0.5


def test_the_oracle_ranks_them_first_and_a_reversed_order_last():
    (row,) = measure(["ablation"], ["quiet"], seeds=1)
    assert row.value == 1.0
    heads = [HeadId("decoder", 0, head) for head in range(4)]
    assert auroc(heads, frozenset(heads[:1])) == 0.0
    assert auroc(heads, frozenset(heads[1:2])) == pytest.approx(1 / 3)


def test_the_results_hold_every_order_and_setting():
    found = read("ground_truth_heads")
    assert {row.setting for row in found} == set(SETTINGS)
    assert {row.order for row in found} >= set(ORDERS)
    assert len({(row.setting, row.seed, row.order) for row in found}) == len(found)
