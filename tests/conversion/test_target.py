"""Layers that can be converted, and those that are chosen."""

from __future__ import annotations

import pytest

from headjax.attention import Collaborative, Grouped, Latent, MultiHead, RotaryHalves
from headjax.conversion import ToGrouped, ToLatent, convert
from headjax.core.errors import ConfigError
from headjax.models.encoder import Albert
from tests import tiny
from tests.closeness import assert_close
from tests.conversion.cases import EXACT, PADDED, attentions, encoder, hidden
from tests.hub.directories import CONFIGS, model_of


def test_only_the_chosen_layers_change_and_each_can_have_its_own_target(model) -> None:
    one = convert(model, "latent:rank=8", layers=[1]).model
    assert [type(attention) for attention in attentions(one)] == [MultiHead, Latent]
    each = convert(model, {("encoder", 0): "latent:rank=4", ("encoder", 1): ToGrouped(kv_heads=2)}).model
    assert [type(attention) for attention in attentions(each)] == [Latent, Grouped]


def test_layers_that_share_parameters_change_together() -> None:
    shared = encoder(recipe=Albert, embedding_size=8)
    converted, errors = convert(shared, EXACT["collaborative"], batches=[PADDED])
    assert [type(attention) for attention in attentions(converted)] == [Collaborative, Collaborative]
    assert len(errors) == 1
    assert_close(hidden(converted, PADDED), hidden(shared, PADDED), sums=tiny.SUMS)


def test_grouped_layers_are_converted_from_one_key_per_head() -> None:
    source = tiny.model(tiny.decoder_config(tiny.layer(Grouped(num_heads=4, kv_heads=2, head_dim=4))))
    converted, _ = convert(source, ToLatent(rank=16))
    assert_close(hidden(converted, PADDED), hidden(source, PADDED), sums=tiny.SUMS)


def test_layers_that_cannot_become_a_target_are_refused_before_any_work() -> None:
    normalised = model_of(CONFIGS["qwen3"])
    with pytest.raises(ConfigError, match="decoder/0: query_norm:"):
        convert(normalised, "collaborative:shared_dim=4")
    turning = tiny.model(tiny.decoder_config(tiny.layer(tiny.multi_head(rotary=RotaryHalves()))))
    with pytest.raises(ConfigError, match="decoder/0: rotary:"):
        convert(turning, "collaborative:shared_dim=8")
    shared = tiny.model(tiny.decoder_config(tiny.layer(tiny.collaborative())))
    with pytest.raises(ConfigError, match="decoder/0: attention:"):
        convert(shared, "latent:rank=8")
    with pytest.raises(ConfigError, match="to: decoder/3"):
        convert(turning, {("decoder", 3): "gated"})
    converted = convert(turning, "fixed:head_dim=6").model
    assert_close(hidden(converted, PADDED), hidden(turning, PADDED), sums=tiny.SUMS)
