from __future__ import annotations

import pytest

from headjax.attention import Grouped
from headjax.heads import gates as head_gates
from headjax.heads.ablation import ablate
from headjax.heads.groups import key_value_groups, removals
from headjax.heads.head_id import all_heads
from headjax.heads.named_orders import OrderConfig, order_heads, units
from headjax.heads.ordering import by_ablation, by_scores, compared, flat
from headjax.heads.reconstruction_order import reconstruction_order
from headjax.heads.scores import score_heads
from tests import tiny
from tests.closeness import close_to


@pytest.mark.whole
def test_each_name_is_the_order_it_says(model, batches, scores):
    for name in ("importance", "importance_raw", "importance_token", "fisher", "hies"):
        assert order_heads(model, batches, OrderConfig(by=name))(2) == by_scores(scores, name)
    assert order_heads(model, batches, OrderConfig(by="ablation"))(2) == by_ablation(ablate(model, batches))
    expected = reconstruction_order(model, batches)
    assert order_heads(model, batches, OrderConfig(by="reconstruction"))(2) == expected


@pytest.fixture(scope="module")
def grouped():
    layer = tiny.layer(Grouped(num_heads=4, kv_heads=2, head_dim=4))
    return tiny.model(tiny.decoder_config(layer, layer))


@pytest.mark.parametrize("whole_groups", [False, True])
@pytest.mark.parametrize(
    "name",
    ["importance", "hies", "ablation", "reconstruction", "subset", "random"],
)
def test_orders_name_every_head_once_keep_groups_together_and_tell_their_progress(name, whole_groups, grouped, batches):
    config, seen = OrderConfig(by=name, whole_groups=whole_groups, gate_steps=3, seed=5), []
    order = order_heads(grouped, batches, config, progress=lambda done, _: seen.append(done))(4)
    steps = removals(grouped.config, order, whole_groups=True)
    assert sorted(order) == sorted(flat(steps)) == sorted(all_heads(grouped.config))
    assert not whole_groups or order == flat(steps)
    total, unit = units(config, len(batches))
    assert seen == sorted(seen)
    assert name == "random" or seen[-1] == total
    assert unit == ("step" if name == "subset" else "batch")
    if name in ("subset", "random"):
        assert order == order_heads(grouped, batches, config)(4), "seeded"
    if whole_groups and name in ("importance", "hies"):
        values = compared(score_heads(grouped, batches).values, name)
        sums = [sum(values[head] for head in group) for group in steps]
        assert sums == sorted(sums)


def test_groups_cost_together(grouped, batches):
    """Ablation of a group is not the sum over its heads."""
    groups = key_value_groups(grouped.config)
    ablated = ablate(grouped, batches, "group", heads=[group[0] for group in groups])
    effects = ablated.effects()
    for group in groups:
        gates = head_gates.without(grouped.config, group)
        losses = [grouped.config.loss(grouped(batch, gates), batch) for batch in batches]
        loss = sum(float(each.total.sum()) for each in losses) / sum(float(each.weight.sum()) for each in losses)
        assert effects[group[0]] == close_to(loss - ablated.mean(), sums=8 * tiny.SUMS)
