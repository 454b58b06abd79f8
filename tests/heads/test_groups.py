import dataclasses

import pytest

from headjax.core.errors import HeadjaxError
from headjax.heads.groups import by_groups, key_value_groups, part, removals, uniform_steps
from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.ordering import ends, flat, random_order
from headjax.heads.pruning import prune
from headjax.nn import GroupedAttention, Kind
from headjax.nn.compressed import CompressedAttention
from headjax.nn.embeddings import RelativeBuckets
from tests import tiny
from tests.hub.directories import BERT, model_of
from tests.models.test_encoder import config as encoder
from tests.models.test_encoder_decoder import translation


def grouped(num_heads=4, kv_heads=2, **fields):
    return tiny.layer(tiny.grouped(num_heads, kv_heads, 4, **fields))


CONFIG = tiny.decoder_config(grouped(), grouped())


def heads(*names):
    return tuple(HeadId.parse(f"decoder/{name}") for name in names)


def in_encoder(*steps):
    return tuple(tuple(HeadId.parse(f"encoder/{name}") for name in step) for step in steps)


ORDER = heads("1/3", "0/1", "1/0", "0/3", "0/2", "1/1", "1/2", "0/0")


def test_groups_are_the_heads_of_one_key():
    assert key_value_groups(CONFIG)[1] == heads("0/2", "0/3")
    uneven = tiny.decoder_config(tiny.layer(), grouped(3, 2, kv_index=(0, 1, 0)))
    assert [len(group) for group in key_value_groups(uneven)] == [1, 1, 1, 1, 2, 1]
    assert key_value_groups(uneven, ["cross"]) == ()
    inside = Kind(CompressedAttention, inner=tiny.grouped(4, 2, 4), rank=4)
    assert inside.groups == (0, 0, 1, 1)


def test_groups_are_ordered_by_their_sum():
    values = dict(zip(all_heads(CONFIG), [1.0, 5.0, 2.0, 2.0, 0.0, 9.0, 3.0, 0.5], strict=True))
    assert removals(CONFIG, by_groups(CONFIG, values), whole_groups=True) == (
        heads("1/2", "1/3"),
        heads("0/2", "0/3"),
        heads("0/0", "0/1"),
        heads("1/0", "1/1"),
    )
    assert removals(CONFIG, ORDER, whole_groups=True)[0] == heads("1/3", "1/2")


def test_a_share_is_whole_groups_by_the_places_of_their_heads():
    assert part(CONFIG, ORDER, 0.25) == heads("1/2", "1/3")
    assert part(CONFIG, map(str, ORDER), 0.5) == heads("1/2", "1/3", "0/2", "0/3")
    with pytest.warns(UserWarning, match=r"^share: 2 heads go, not 3: .* 2 heads, since KV groups .*decoder/"):
        part(CONFIG, ORDER, 0.4)
    with pytest.warns(UserWarning, match=r"^share: 2 heads go, not 8: the order names no others"):
        part(CONFIG, ORDER[:2], 1.0)
    with pytest.raises(HeadjaxError, match="share: must be between 0 and 1"):
        part(CONFIG, ORDER, 25)


def test_layers_that_share_their_parameters_lose_a_head_together():
    """By the mean of its places, one for each layer; of a whole group the first place in a layer counts."""
    config = encoder("albert", num_layers=2, **grouped())
    order = tuple(dataclasses.replace(head, stack="encoder") for head in ORDER)
    steps, whole = removals(config, order), removals(config, order, whole_groups=True)
    assert steps == in_encoder(["1/3", "0/3"], ["0/1", "1/1"], ["1/0", "0/0"], ["0/2", "1/2"])
    assert whole == in_encoder(["1/3", "0/3", "0/2", "1/2"], ["0/1", "1/0", "1/1", "0/0"])
    assert removals(CONFIG, ORDER) == tuple((head,) for head in ORDER)


def test_one_head_of_every_group_of_every_layer():
    assert uniform_steps(CONFIG, ORDER) == (heads("0/1", "0/3", "1/0", "1/3"),)
    left = prune(tiny.model(CONFIG), uniform_steps(CONFIG, ORDER)[0]).config
    layers = [attention.replace(head_ids=None) for attention in left.attention]
    assert layers == [Kind(GroupedAttention, num_heads=2, kv_heads=2, head_dim=4)] * 2


def test_one_group_of_every_layer():
    (step,) = uniform_steps(CONFIG, ORDER, whole_groups=True)
    assert set(step) == set(heads("0/2", "0/3", "1/2", "1/3"))
    model = prune(tiny.model(CONFIG), step)
    for attention in model.config.attention:
        assert attention.replace(head_ids=None) == Kind(GroupedAttention, num_heads=2, kv_heads=1, head_dim=4)
    assert model.num_parameters == tiny.model(CONFIG).num_parameters - 2 * 4 * 16 * (2 + 1 + 1 + 2)


def test_heads_with_their_own_keys_go_one_by_one_and_one_stays():
    config = tiny.decoder_config()
    order = all_heads(config)[::-1]
    steps = uniform_steps(config, order)
    assert steps == uniform_steps(config, order, whole_groups=True)
    assert ends(steps) == (0, 2, 4, 6)
    assert flat(steps)[:2] == heads("0/3", "1/3")


def test_a_uniform_encoder_computes_as_one_scan():
    model = model_of(BERT)
    order = random_order(all_heads(model.config), 0)
    assert len(prune(model, order[:1]).config.stacks()["encoder"].groups) == 2
    smaller = prune(model, flat(uniform_steps(model.config, order)[:2]))
    assert [attention.num_heads for attention in smaller.config.attention] == [2, 2]
    assert len(smaller.config.stacks()["encoder"].groups) == 1


def test_what_is_left_goes_uniformly_after_a_step():
    config = tiny.decoder_config(grouped(6), grouped(6))
    first, second = uniform_steps(config, all_heads(config))
    rest = tuple(head for head in all_heads(config) if head not in first)
    assert uniform_steps(config, rest) == (second,)


def test_layers_that_share_a_position_bias_lose_the_same_heads():
    config = translation(position_bias=RelativeBuckets(num_heads=4))
    order = tuple(
        HeadId("encoder", 1, 3 - head.head) if head.stack == "encoder" and head.layer else head
        for head in all_heads(config, ["encoder"])
    )
    first, *_ = uniform_steps(config, order)
    assert len({head.head for head in first}) == 1
    apart, *_ = uniform_steps(dataclasses.replace(config, position_bias=None), order)
    assert [str(head) for head in apart] == ["encoder/0/0", "encoder/1/3"]
