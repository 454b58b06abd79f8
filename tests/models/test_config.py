"""Results of a forward, losses, and head stacks of a config."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.models.config import Loss, Output, head_stack_at
from headjax.models.stack import SharedStack
from tests import tiny
from tests.models.test_encoder_decoder import translation


def test_losses_are_means_over_targets():
    loss = Loss(jnp.asarray([6.0, 1.0, 0.0]), jnp.asarray([3.0, 1.0, 0.0]))
    assert float(loss.mean()) == 7.0 / 4.0
    np.testing.assert_array_equal(loss.per_example(), [2.0, 1.0, 0.0])


def test_results_that_a_forward_lacks_are_named():
    output = Output(hidden=jnp.zeros((1, 2, 3)))
    with pytest.raises(DataError, match=r"^logits: "):
        output.require_logits()
    with pytest.raises(DataError, match=r"^start_logits: "):
        output.require_logits("start_logits")
    with pytest.raises(DataError, match=r"^probes: "):
        output.require_probes()


def test_head_stacks_are_those_that_the_layers_have():
    config = tiny.decoder_config(tiny.layer(), tiny.layer(tiny.collaborative()))
    attentions = config.attentions()
    assert list(attentions) == ["decoder"]
    assert attentions["decoder"] == (tiny.layer().attention, tiny.collaborative())


def test_sites_are_all_attention_layers_with_their_places():
    config = translation()
    sites = config.sites()
    assert [site[:4] for site in sites] == [
        ("encoder", "encoder", "attention", 0),
        ("encoder", "encoder", "attention", 1),
        ("decoder", "decoder", "attention", 0),
        ("decoder", "decoder", "attention", 1),
        ("cross", "decoder", "cross_attention", 0),
        ("cross", "decoder", "cross_attention", 1),
    ]
    for site in sites:
        assert config.site(site.head_stack, site.layer) == site
        assert site.attention == config.attentions()[site.head_stack][site.layer]
        assert head_stack_at(site.stack, site.slot) == site.head_stack
        assert (site.tied, site.first) == ((site.layer,), True)
    assert config.sites(["cross"]) == sites[4:]


def test_layers_of_one_parameter_set_are_tied_sites():
    config = tiny.decoder_config(decoder=SharedStack(layers=(tiny.layer(),) * 3))
    assert [(site.tied, site.first) for site in config.sites()] == [((0, 1, 2), layer == 0) for layer in range(3)]
