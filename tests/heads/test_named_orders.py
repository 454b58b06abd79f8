from __future__ import annotations

import numpy as np
import pytest

from headjax.attention import Grouped
from headjax.core.errors import ConfigError, DataError, HeadjaxError
from headjax.heads import gates as head_gates
from headjax.heads.ablation import ablate
from headjax.heads.fisher import fisher_blocks, fisher_selection
from headjax.heads.groups import group_steps, key_value_groups
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.named_orders import ORDERS, OrderConfig, order_heads, units
from headjax.heads.ordering import by_ablation, by_scores, compared, flat
from headjax.heads.pruning import prune_gradually
from headjax.heads.reconstruction_order import reconstruction_order
from headjax.heads.scores import score_heads
from tests import tiny
from tests.closeness import close_to


@pytest.fixture(scope="module")
def model():
    return tiny.model(tiny.decoder_config(tiny.layer(tiny.multi_head(3)), tiny.layer(tiny.multi_head(3))))


@pytest.fixture(scope="module")
def batches():
    return [tiny.tokens(4, 8, seed) for seed in range(2)]


def test_each_name_is_the_order_it_says(model, batches):
    scores = score_heads(model, batches)
    for name in ("importance", "importance_raw", "fisher", "entropy"):
        assert order_heads(model, batches, OrderConfig(by=name))(2) == by_scores(scores, name)
    assert order_heads(model, batches, OrderConfig(by="ablation"))(2) == by_ablation(ablate(model, batches))
    for name, labels in (("reconstruction", False), ("reconstruction_labels", True)):
        expected = reconstruction_order(model, batches, labels=labels)
        assert order_heads(model, batches, OrderConfig(by=name))(2) == expected
    blocks = fisher_blocks(model, batches)
    for count in (1, 3, 6):
        order = order_heads(model, batches, OrderConfig(by="fisher_blocks"))(count)
        assert order[:count] == fisher_selection(model.config, blocks, count)
        assert sorted(order) == sorted(all_heads(model.config))


@pytest.fixture(scope="module")
def grouped():
    layer = tiny.layer(Grouped(num_heads=4, kv_heads=2, head_dim=4))
    return tiny.model(tiny.decoder_config(layer, layer))


@pytest.mark.parametrize(
    "name", ["importance", "entropy", "ablation", "fisher_blocks", "reconstruction", "subset", "random"]
)
def test_whole_groups_stay_together(grouped, batches, name):
    order = order_heads(grouped, batches, OrderConfig(by=name, whole_groups=True, gate_steps=2))(4)
    assert sorted(order) == sorted(all_heads(grouped.config))
    assert sorted(flat(group_steps(grouped.config, order))) == sorted(order)
    assert flat(group_steps(grouped.config, order)) == order
    if name in ("importance", "entropy"):
        values = compared(score_heads(grouped, batches).values, name)
        sums = [sum(values[head] for head in group) for group in group_steps(grouped.config, order)]
        assert sums == sorted(sums, reverse=name == "entropy")


def test_groups_cost_together(grouped, batches):
    """Ablation and Fisher information of a group are not the sum over its heads."""
    groups = key_value_groups(grouped.config)
    ablated = ablate(grouped, batches, "group", heads=[group[0] for group in groups])
    effects = ablated.effects()
    for group in groups:
        gates = head_gates.without(grouped.config, group)
        losses = [grouped.config.loss(grouped(batch, gates), batch) for batch in batches]
        loss = sum(float(each.total.sum()) for each in losses) / sum(float(each.weight.sum()) for each in losses)
        assert effects[group[0]] == close_to(loss - ablated.mean(), sums=8 * tiny.SUMS)
    blocks = fisher_blocks(grouped, batches)
    order = fisher_selection(grouped.config, blocks, 3, whole_groups=True)
    costs = {
        group: blocks["decoder"][group[0].layer][group[0].head :, group[0].head :][:2, :2].sum() for group in groups
    }
    assert order == min(costs, key=costs.get)


@pytest.mark.parametrize("whole_groups", [False, True])
@pytest.mark.parametrize("name", ["importance", "output_norm", "ablation", "reconstruction", "subset"])
def test_progress_goes_as_far_as_it_says(grouped, batches, name, whole_groups):
    config = OrderConfig(by=name, whole_groups=whole_groups, gate_steps=3)
    seen = []
    order_heads(grouped, batches, config, progress=lambda done, _: seen.append(done))(2)
    total, unit = units(config, len(batches))
    assert seen == sorted(seen)
    assert seen[-1] == total
    assert unit == ("step" if name == "subset" else "batch")


@pytest.mark.parametrize("name", ["subset", "random"])
def test_orders_that_draw_are_seeded_and_name_every_head_once(model, batches, name):
    config = OrderConfig(by=name, gate_steps=2, seed=5)
    order = order_heads(model, batches, config)(2)
    assert sorted(order) == sorted(all_heads(model.config))
    assert order == order_heads(model, batches, config)(2)


def test_bad_requests_are_errors(model, batches):
    with pytest.raises(ConfigError, match=r"^by: unknown order 'fisher_block'; did you mean 'fisher_blocks'\?$"):
        OrderConfig(by="fisher_block")
    with pytest.raises(ConfigError, match="random is not a score"):
        OrderConfig(by="random", normalize=True)
    with pytest.raises(HeadjaxError, match="subset chooses all heads at once"):
        order_heads(model, batches, OrderConfig(by="subset"), gates=head_gates.ones(model.config))
    with pytest.raises(DataError, match="no example"):
        order_heads(model, [], OrderConfig())
    assert all(ORDERS.values())


def test_gradual_pruning_orders_what_is_left_and_keeps_original_numbers(model):
    tuned = []

    def tune(left):
        tuned.append(len(all_heads(left.config)))
        return left.replace(history=(*left.history, {"action": "tuned"}))

    def last_first(left, count):
        assert count == 2
        return tuple(reversed(all_heads(left.config)))

    found = prune_gradually(model, [2, 2, 4], last_first, tune)
    assert tuned == [4, 2]
    assert [str(head) for head in found.removed] == ["decoder/1/2", "decoder/1/1", "decoder/1/0", "decoder/0/2"]
    assert all_heads(found.model.config) == (HeadId("decoder", 0, 0), HeadId("decoder", 0, 1))
    assert [entry["action"] for entry in found.model.history] == ["prune", "tuned"] * 2
    with pytest.raises(HeadjaxError, match="6 heads, only 2 may be removed"):
        prune_gradually(model, [6], lambda left, count: all_heads(left.config)[:2], tune)
    with pytest.raises(HeadjaxError, match="counts: must rise"):
        prune_gradually(model, [4, 2], last_first, tune)
    assert np.isfinite(found.model(tiny.tokens(4, 8))[1]).all()
