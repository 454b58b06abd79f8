from __future__ import annotations

import numpy as np

from headjax.heads import ordering
from headjax.heads.ablation import Ablation
from headjax.heads.groups import removals
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.ordering import explicit_heads, requested_count
from headjax.heads.scores import Scores
from tests import tiny

CONFIG = tiny.decoder_config(tiny.layer(tiny.multi_head(3)), tiny.layer(tiny.multi_head(2)))
HEADS = all_heads(CONFIG)
VALUES = dict(zip(HEADS, (0.5, 0.1, 0.3, 0.1, 0.9), strict=True))


def names(order):
    return [str(head).removeprefix("decoder/") for head in order]


def test_score_orders():
    assert names(ordering.by_score(VALUES)) == ["0/1", "1/0", "0/2", "0/0", "1/1"]
    assert names(ordering.by_score(VALUES, low_first=False)) == ["1/1", "0/0", "0/2", "0/1", "1/0"]


def test_named_scores_know_their_direction():
    scores = Scores({"importance": VALUES, "entropy": VALUES}, loss=1.0, examples=1, seconds=0.0)
    assert names(ordering.by_scores(scores, "importance_raw")) == ["0/1", "1/0", "0/2", "0/0", "1/1"]
    assert names(ordering.by_scores(scores, "importance")) == ["1/0", "0/1", "0/2", "0/0", "1/1"]


def ablation():
    baseline = {"loss": np.array([2.0, 4.0]), "accuracy": np.array([1.0, 0.0])}
    ablated = {
        "loss": np.array([[5.0, 5.0], [1.0, 4.0], [2.0, 4.0], [2.0, 4.5], [9.0, 9.0]]),
        "accuracy": np.array([[1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]),
    }
    weights = {"loss": np.array([3.0, 5.0]), "accuracy": np.ones(2)}
    return Ablation("each", HEADS, baseline, ablated, weights)


def test_oracle_order_removes_first_what_costs_least():
    assert names(ordering.by_ablation(ablation())) == ["0/1", "0/2", "1/0", "0/0", "1/1"]
    assert names(ordering.by_ablation(ablation(), "accuracy")) == ["0/0", "0/2", "1/0", "0/1", "1/1"]


def test_random_orders_are_seeded_permutations():
    orders = {ordering.random_order(CONFIG, seed) for seed in range(5)}
    assert len(orders) > 1
    assert all(sorted(order) == sorted(HEADS) for order in orders)
    assert ordering.random_order(CONFIG, 3) == ordering.random_order(CONFIG, 3)


def test_every_layer_keeps_its_minimum():
    order = removals(CONFIG, ordering.by_score(VALUES))
    assert names(ordering.flat(ordering.steps_within_minimum(CONFIG, order, 1))) == ["0/1", "1/0", "0/2"]
    assert ordering.steps_within_minimum(CONFIG, order, 3) == ()


def test_stacks_are_chosen_by_name():
    assert ordering.in_stacks(CONFIG, HEADS, ["decoder"]) == HEADS


def test_selection_by_count_percentage_and_name():
    counts = {"2": 2, "40%": 2, "59.9%": 2, "100%": 5, "0": 0}
    assert {request: requested_count(CONFIG, request) for request in counts} == counts
    named = (HeadId("decoder", 1, 0), HeadId("decoder", 0, 2))
    assert explicit_heads(CONFIG, "decoder/1/0, decoder/0/2") == named
    assert requested_count(tiny.decoder_config(*[tiny.layer(tiny.multi_head(10))] * 100), "28.7%") == 287
