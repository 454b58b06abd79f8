import numpy as np
import pytest

import headjax
from headjax.heads import ordering
from headjax.heads.ablation import Ablation
from headjax.heads.groups import key_value_groups, removals
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.ordering import by_ablation, by_scores, explicit_heads, flat, requested_count
from headjax.heads.orders import OrderConfig, order_heads, units
from headjax.heads.reconstruction_order import reconstruction_order
from headjax.heads.scores import Scores, normalize_layers
from tests import tiny
from tests.closeness import close_to

CONFIG = tiny.decoder_config(tiny.layer(tiny.multi_head(3)), tiny.layer(tiny.multi_head(2)))
HEADS = all_heads(CONFIG)
VALUES = dict(zip(HEADS, (0.5, 0.1, 0.3, 0.1, 0.9), strict=True))


def names(order):
    return [str(head).removeprefix("decoder/") for head in order]


def test_score_orders():
    assert names(ordering.by_score(VALUES)) == ["0/1", "1/0", "0/2", "0/0", "1/1"]
    assert names(ordering.by_score(VALUES, low_first=False)) == ["1/1", "0/0", "0/2", "0/1", "1/0"]


def test_named_scores_know_their_direction():
    values = {"importance": VALUES, "importance_layer": normalize_layers(VALUES), "entropy": VALUES}
    scores = Scores(values, loss=1.0, examples=1, seconds=0.0)
    assert names(ordering.by_scores(scores, "importance")) == ["0/1", "1/0", "0/2", "0/0", "1/1"]
    assert names(ordering.by_scores(scores, "importance_layer")) == ["1/0", "0/1", "0/2", "0/0", "1/1"]


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
    orders = {ordering.random_order(HEADS, seed) for seed in range(5)}
    assert len(orders) > 1
    assert all(sorted(order) == sorted(HEADS) for order in orders)
    assert ordering.random_order(HEADS, 3) == ordering.random_order(HEADS, 3)


def test_selection_by_count_percentage_and_name():
    counts = {"2": 2, "40%": 2, "59.9%": 2, "100%": 5, "0": 0}
    assert {request: requested_count(CONFIG, request) for request in counts} == counts
    named = (HeadId("decoder", 1, 0), HeadId("decoder", 0, 2))
    assert explicit_heads(CONFIG, "decoder/1/0, decoder/0/2") == named
    assert requested_count(tiny.decoder_config(*[tiny.layer(tiny.multi_head(10))] * 100), "28.7%") == 287


@pytest.mark.whole
def test_each_name_is_the_order_it_says(model, batches, scores):
    for name in ("importance", "importance_layer", "importance_token", "fisher", "hies"):
        assert order_heads(model, batches, OrderConfig(by=name)) == by_scores(scores, name)
    assert order_heads(model, batches, "ablation") == by_ablation(headjax.ablate(model, batches))
    expected = reconstruction_order(model, batches)
    assert order_heads(model, batches, "reconstruction") == expected


@pytest.fixture(scope="module")
def grouped():
    layer = tiny.layer(tiny.grouped(4, 2, 4))
    return tiny.model(tiny.decoder_config(layer, layer))


@pytest.mark.parametrize("whole_groups", [False, True])
@pytest.mark.parametrize("name", ["importance", "hies", "ablation", "reconstruction", "subset", "random"])
def test_orders_name_every_head_once_keep_groups_together_and_tell_their_progress(name, whole_groups, grouped, batches):
    config, seen = OrderConfig(by=name, whole_groups=whole_groups, gate_steps=3, seed=5), []
    order = order_heads(grouped, batches, config, count=4, progress=lambda done, _: seen.append(done))
    steps = removals(grouped.config, order, whole_groups=True)
    assert sorted(order) == sorted(flat(steps)) == sorted(all_heads(grouped.config))
    assert not whole_groups or order == flat(steps)
    total, unit = units(config, len(batches))
    assert seen == sorted(seen)
    assert name == "random" or seen[-1] == total
    assert unit == ("step" if name == "subset" else "batch")
    if name in ("subset", "random"):
        assert order == order_heads(grouped, batches, config, count=4), "seeded"
    if whole_groups and name in ("importance", "hies"):
        values = headjax.score_heads(grouped, batches).score(name)
        sums = [sum(values[head] for head in group) for group in steps]
        assert sums == sorted(sums)


def test_groups_cost_together(grouped, batches):
    """Ablation of a group is not the sum over its heads."""
    groups = key_value_groups(grouped.config)
    ablated = headjax.ablate(grouped, batches, "group", heads=[group[0] for group in groups])
    effects = ablated.effects()
    for group in groups:
        gated = headjax.gated(grouped, dict.fromkeys(group, 0.0))
        losses = [gated.loss(batch) for batch in batches]
        loss = sum(float(each.total.sum()) for each in losses) / sum(float(each.weight.sum()) for each in losses)
        assert effects[group[0]] == close_to(loss - ablated.mean(), sums=8 * tiny.SUMS)
