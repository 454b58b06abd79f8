from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import HeadjaxError
from headjax.heads.ablation import Ablation
from headjax.heads.best_heads import best_heads
from headjax.heads.head_id import HeadId

HEADS = (HeadId("encoder", 0, 0), HeadId("encoder", 0, 1), HeadId("encoder", 1, 0), HeadId("cross", 0, 5))


def ablation(rows, mode="all-but-one", name="loss"):
    baseline = np.array([1.0, 2.0, 3.0])
    return Ablation(mode, HEADS, {name: baseline}, {name: baseline + np.array(rows)}, {name: np.ones(3)})


CHOSEN = [[0.5, 0.4, 0.6], [-0.1, 0.3, 0.1], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]


def test_the_best_head_of_a_layer_costs_least():
    best = best_heads(ablation(CHOSEN))
    assert [entry.head for entry in best] == [HEADS[1], HEADS[2], HEADS[3]]
    assert [entry.effect for entry in best] == pytest.approx([0.1, 1.0, 0.0])
    assert best[0].comparison.difference == pytest.approx(0.1)
    assert next(entry.head for entry in best_heads(ablation(CHOSEN, name="accuracy"), "accuracy")) == HEADS[0]


def test_effects_can_come_from_other_examples():
    best = best_heads(ablation(CHOSEN), evaluate_on=ablation([[0.0] * 3, [2.0] * 3, [3.0] * 3, [4.0] * 3]))
    assert [(entry.head, entry.effect) for entry in best] == [(HEADS[1], 2.0), (HEADS[2], 3.0), (HEADS[3], 4.0)]


def test_other_ablations_are_errors():
    with pytest.raises(HeadjaxError, match="all-but-one"):
        best_heads(ablation(CHOSEN, mode="each"))
    with pytest.raises(HeadjaxError, match="ablates other heads"):
        best_heads(ablation(CHOSEN), evaluate_on=ablation(CHOSEN)._replace(heads=HEADS[:3]))
