from __future__ import annotations

import functools

import numpy as np
import pytest

from headjax.core.errors import HeadjaxError
from headjax.heads import ordering
from headjax.heads.ablation import Ablation
from headjax.heads.groups import removals
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.ordering import explicit_heads, most_within, requested_count
from headjax.heads.scores import Scores, batch_sums, score_heads
from tests import tiny
from tests.models.test_encoder_decoder import t5

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


def iterative(config, counts, rescore, **options):
    arrange = functools.partial(removals, config)
    return ordering.flat(ordering.iterative_steps(config, counts, rescore, arrange, **options))


def test_iterative_order_scores_what_is_left():
    """Scores that rise for the other heads of a layer once one is gone: one-shot order would empty layer 0."""
    seen = []

    def rescore(at):
        seen.append(int(sum(array.sum() for array in at.values())))
        left = np.asarray(at["decoder"]).sum(axis=1)
        return {head: head.head + (0.0 if left[head.layer] == 3 else 10.0) + 5.0 * head.layer for head in HEADS}

    order = iterative(CONFIG, [1, 2, 4], rescore)
    assert seen == [6, 5, 4]
    assert names(order) == ["0/0", "1/0", "0/1", "0/2"]
    assert names(iterative(CONFIG, [1, 2, 4], rescore, minimum=1)) == ["0/0", "1/0", "0/1"]
    with pytest.raises(HeadjaxError, match="must rise"):
        iterative(CONFIG, [2, 1], rescore)


def test_iterative_order_spends_its_count_on_the_chosen_stacks():
    """Cross-attention scores lowest everywhere: its heads must neither take the count nor be gated."""
    config = t5(attention=tiny.multi_head(3))
    seen = []

    def rescore(at):
        seen.append({stack: int(array.sum()) for stack, array in at.items()})
        return {head: head.head - 10.0 * (head.stack == "cross") for head in all_heads(config)}

    order = iterative(config, [2, 4], rescore, stacks=["encoder"])
    assert [str(head) for head in order] == ["encoder/0/0", "encoder/1/0", "encoder/0/1", "encoder/1/1"]
    assert seen == [{"encoder": 6, "decoder": 6, "cross": 6}, {"encoder": 4, "decoder": 6, "cross": 6}]
    with pytest.raises(HeadjaxError, match="no head stack 'vision'"):
        iterative(config, [1], rescore, stacks=["vision"])


def test_iterative_order_by_importance_compiles_once():
    model, batches = tiny.model(CONFIG), [tiny.tokens(2, 6)]
    before = batch_sums._cache_size()
    order = iterative(
        CONFIG, [2, 3, 5], lambda at: score_heads(model, batches, gates=at, statistics=()).score("importance")
    )
    assert sorted(order) == sorted(HEADS)
    assert batch_sums._cache_size() == before + 1


def test_selection_by_count_percentage_and_name():
    counts = {"2": 2, "40%": 2, "59.9%": 2, "100%": 5, "0": 0}
    assert {request: requested_count(CONFIG, request) for request in counts} == counts
    named = (HeadId("decoder", 1, 0), HeadId("decoder", 0, 2))
    assert explicit_heads(CONFIG, "decoder/1/0, decoder/0/2") == named
    assert requested_count(tiny.decoder_config(*[tiny.layer(tiny.multi_head(10))] * 100), "28.7%") == 287


def test_the_most_heads_within_a_drop():
    values = [90.0, 90.5, 89.8, 89.1, 80.0, 50.0]
    got = most_within(HEADS, lambda heads: values[len(heads)], drop=1.0)
    assert got == (HEADS[:3], 89.1, 90.0)
    assert most_within(HEADS, lambda heads: 90.0, drop=0.0).heads == HEADS
    assert most_within(HEADS, lambda heads: 90.0 - len(heads), drop=0.0).heads == ()
