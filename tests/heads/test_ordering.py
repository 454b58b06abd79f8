"""Orders of removal, and removals of heads that go together."""

import dataclasses

import numpy as np
import pytest

import headjax
from headjax.heads import ordering
from headjax.heads.ablation import Ablation
from headjax.heads.orders import units
from tests import tiny
from tests.closeness import close_to
from tests.models.test_encoder import config as encoder
from tests.models.test_encoder_decoder import translation

CONFIG = tiny.decoder_config(tiny.layer(tiny.multi_head(3)), tiny.layer(tiny.multi_head(2)))
HEADS = headjax.all_heads(CONFIG)


def sites(config):
    return headjax.attention_sites(tiny.model(config))


VALUES = dict(zip(HEADS, (0.5, 0.1, 0.3, 0.1, 0.9), strict=True))


def names(order):
    return [str(head).removeprefix("decoder/") for head in order]


def test_score_orders():
    assert names(ordering.by_score(VALUES)) == ["0/1", "1/0", "0/2", "0/0", "1/1"]


def ablation():
    baseline = {"loss": np.array([2.0, 4.0]), "accuracy": np.array([1.0, 0.0])}
    ablated = {
        "loss": np.array([[5.0, 5.0], [1.0, 4.0], [2.0, 4.0], [2.0, 4.5], [9.0, 9.0]]),
        "accuracy": np.array([[1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]),
    }
    weights = {"loss": np.array([3.0, 5.0]), "accuracy": np.ones(2)}
    return Ablation("each", HEADS, baseline, ablated, weights)


def test_oracle_order_removes_first_what_costs_least():
    assert names(ordering.by_score(ablation().effects())) == ["0/1", "0/2", "1/0", "0/0", "1/1"]


def test_selection_by_count_percentage_and_name():
    counts = {"2": 2, "40%": 2, "59.9%": 2, "100%": 5, "0": 0}
    found = sites(CONFIG)
    assert {request: ordering.requested_count(found, request) for request in counts} == counts
    many = sites(tiny.decoder_config(*[tiny.layer(tiny.multi_head(10))] * 100))
    assert ordering.requested_count(many, "28.7%") == 287


@pytest.mark.whole
def test_each_name_is_the_order_it_says(model, batches, scores):
    for name in ("importance", "importance_layer", "importance_token", "fisher", "hies"):
        assert headjax.order_heads(model, batches, headjax.OrderConfig(by=name)) == ordering.by_score(
            scores.score(name)
        )
    assert headjax.order_heads(model, batches, "ablation") == ordering.by_score(
        headjax.ablate(model, batches).effects()
    )
    expected = headjax.reconstruction_order(model, batches)
    assert headjax.order_heads(model, batches, "reconstruction") == expected


@pytest.fixture(scope="module")
def sharing():
    layer = tiny.layer(tiny.grouped(4, 2, 4))
    return tiny.model(tiny.decoder_config(layer, layer))


@pytest.mark.parametrize("whole_groups", [False, True])
@pytest.mark.parametrize("name", ["importance", "hies", "ablation", "reconstruction", "subset", "random"])
def test_orders_name_every_head_once_keep_groups_together_and_tell_their_progress(name, whole_groups, sharing, batches):
    config, seen = headjax.OrderConfig(by=name, whole_groups=whole_groups, gate_steps=3, seed=5), []
    order = headjax.order_heads(sharing, batches, config, count=4, progress=lambda done, _: seen.append(done))
    steps = ordering.removals(headjax.attention_sites(sharing), order, whole_groups=True)
    assert sorted(order) == sorted(ordering.flat(steps)) == sorted(headjax.all_heads(sharing.config))
    assert not whole_groups or order == ordering.flat(steps)
    total, unit = units(config, len(batches))
    assert seen == sorted(seen)
    assert name == "random" or seen[-1] == total
    assert unit == ("step" if name == "subset" else "batch")
    if name in ("subset", "random"):
        assert order == headjax.order_heads(sharing, batches, config, count=4), "seeded"
    if whole_groups and name in ("importance", "hies"):
        values = headjax.score_heads(sharing, batches).score(name)
        sums = [sum(values[head] for head in group) for group in steps]
        assert sums == sorted(sums)


def test_groups_cost_together(sharing, batches):
    """Ablation of a group is not the sum over its heads."""
    groups = ordering.key_value_groups(headjax.attention_sites(sharing))
    ablated = headjax.ablate(sharing, batches, "group", heads=[group[0] for group in groups])
    effects = ablated.effects()
    for group in groups:
        gated = headjax.gated(sharing, dict.fromkeys(group, 0.0))
        losses = [gated.loss(batch) for batch in batches]
        loss = sum(float(each.total.sum()) for each in losses) / sum(float(each.weight.sum()) for each in losses)
        assert effects[group[0]] == close_to(loss - ablated.mean(), sums=8 * tiny.SUMS)


def grouped(num_heads=4, kv_heads=2, **fields):
    return tiny.layer(tiny.grouped(num_heads, kv_heads, 4, **fields))


GROUPED = tiny.decoder_config(grouped(), grouped())


def heads(*names):
    return tuple(headjax.HeadId.parse(f"decoder/{name}") for name in names)


def in_encoder(*steps):
    return tuple(tuple(headjax.HeadId.parse(f"encoder/{name}") for name in step) for step in steps)


ORDER = heads("1/3", "0/1", "1/0", "0/3", "0/2", "1/1", "1/2", "0/0")


def test_groups_are_the_heads_of_one_key():
    assert ordering.key_value_groups(sites(GROUPED))[1] == heads("0/2", "0/3")
    uneven = sites(tiny.decoder_config(tiny.layer(), grouped(3, 2, kv_index=(0, 1, 0))))
    assert [len(group) for group in ordering.key_value_groups(uneven)] == [1, 1, 1, 1, 2, 1]
    assert ordering.key_value_groups(uneven, []) == ()
    inside = headjax.Kind(headjax.CompressedAttention, inner=tiny.grouped(4, 2, 4), rank=4)
    assert inside.groups == (0, 0, 1, 1)


def test_groups_are_ordered_by_their_sum():
    found = sites(GROUPED)
    values = dict(zip(headjax.all_heads(GROUPED), [1.0, 5.0, 2.0, 2.0, 0.0, 9.0, 3.0, 0.5], strict=True))
    assert ordering.removals(found, ordering.by_groups(found, values), whole_groups=True) == (
        heads("1/2", "1/3"),
        heads("0/2", "0/3"),
        heads("0/0", "0/1"),
        heads("1/0", "1/1"),
    )
    assert ordering.removals(found, ORDER, whole_groups=True)[0] == heads("1/3", "1/2")


def test_a_share_is_whole_groups_by_the_places_of_their_heads():
    model = tiny.model(GROUPED)

    def removed(order, share):
        return set(headjax.all_heads(GROUPED)) - set(headjax.all_heads(headjax.prune(model, order, share=share).config))

    assert removed(ORDER, 0.25) == set(heads("1/2", "1/3"))
    assert removed(map(str, ORDER), 0.5) == set(heads("1/2", "1/3", "0/2", "0/3"))
    with pytest.warns(UserWarning, match=r"^share: 2 heads go, not 3: .* 2 heads, since KV groups .*decoder/"):
        headjax.prune(model, ORDER, share=0.4)
    with pytest.warns(UserWarning, match=r"^share: 2 heads go, not 8: the order names no others"):
        headjax.prune(model, ORDER[:2], share=1.0)
    with pytest.raises(headjax.HeadjaxError, match="share: must be from 0 to 1"):
        headjax.prune(model, ORDER, share=25)


def test_layers_that_share_their_parameters_lose_a_head_together():
    """By the mean of its places, one for each layer; of a whole group the first place in a layer counts."""
    tied = sites(encoder("albert", num_layers=2, **grouped()))
    order = tuple(dataclasses.replace(head, stack="encoder") for head in ORDER)
    steps, whole = ordering.removals(tied, order), ordering.removals(tied, order, whole_groups=True)
    assert steps == in_encoder(["1/3", "0/3"], ["0/1", "1/1"], ["1/0", "0/0"], ["0/2", "1/2"])
    assert whole == in_encoder(["1/3", "0/3", "0/2", "1/2"], ["0/1", "1/0", "1/1", "0/0"])
    assert ordering.removals(sites(GROUPED), ORDER) == tuple((head,) for head in ORDER)


def test_one_head_of_every_group_of_every_layer():
    assert ordering.uniform_steps(sites(GROUPED), GROUPED, ORDER) == (heads("0/1", "0/3", "1/0", "1/3"),)
    left = headjax.prune(tiny.model(GROUPED), ordering.uniform_steps(sites(GROUPED), GROUPED, ORDER)[0]).config
    layers = [attention.replace(head_ids=None) for attention in left.attention]
    assert layers == [headjax.Kind(headjax.GroupedAttention, num_heads=2, kv_heads=2, head_dim=4)] * 2


def test_one_group_of_every_layer():
    (step,) = ordering.uniform_steps(sites(GROUPED), GROUPED, ORDER, whole_groups=True)
    assert set(step) == set(heads("0/2", "0/3", "1/2", "1/3"))
    model = headjax.prune(tiny.model(GROUPED), step)
    for attention in model.config.attention:
        assert attention.replace(head_ids=None) == headjax.Kind(
            headjax.GroupedAttention, num_heads=2, kv_heads=1, head_dim=4
        )
    assert model.num_parameters == tiny.model(GROUPED).num_parameters - 2 * 4 * 16 * (2 + 1 + 1 + 2)


def test_heads_with_their_own_keys_go_one_by_one_and_one_stays():
    config = tiny.decoder_config()
    order = headjax.all_heads(config)[::-1]
    steps = ordering.uniform_steps(sites(config), config, order)
    assert steps == ordering.uniform_steps(sites(config), config, order, whole_groups=True)
    assert ordering.ends(steps) == (0, 2, 4, 6)
    assert ordering.flat(steps)[:2] == heads("0/3", "1/3")


def test_layers_that_share_a_position_bias_lose_the_same_heads():
    config = translation(position_bias=headjax.nn.RelativeBuckets(num_heads=4))
    order = tuple(
        headjax.HeadId("encoder", 1, 3 - head.head) if head.stack == "encoder" and head.layer else head
        for head in headjax.all_heads(config, ["encoder"])
    )
    first, *_ = ordering.uniform_steps(sites(config), config, order)
    assert len({head.head for head in first}) == 1
    apart, *_ = ordering.uniform_steps(sites(config), dataclasses.replace(config, position_bias=None), order)
    assert [str(head) for head in apart] == ["encoder/0/0", "encoder/1/3"]
