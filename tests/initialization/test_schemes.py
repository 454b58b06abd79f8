"""Initialisations in closed form: their published numbers, and their promises of a fresh model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from headjax.core.errors import ConfigError
from headjax.core.tensors import flatten
from headjax.initialization import DeepNorm, DSInit, LayerScale, ReZero, TFixup
from headjax.models import Options
from headjax.models.residuals import ScaledNoNorm
from tests import tiny
from tests.closeness import assert_close, close_to
from tests.initialization.models import DEPTH, SEEDS, post_norm, translation


def test_ds_init_scales_each_layer_by_its_depth():
    config = post_norm()
    before, after = config.initialize(SEEDS), DSInit(alpha=0.5).draw(config, SEEDS)
    scale = 0.5 / np.sqrt([1, 2, 3])
    for path, array in flatten(before["decoder"]["layers_0_2"]).items():
        new = flatten(after["decoder"]["layers_0_2"])[path]
        factor = scale.reshape(-1, *(1,) * (array.ndim - 1)) if np.any(array) and "norm" not in path else 1.0
        assert_close(new, array * factor, sums=1, message=path)
    np.testing.assert_array_equal(before["embeddings"]["token"], after["embeddings"]["token"])


def ratios(initialization, config):
    """By path, the standard deviation of the initialised weights over that of the plain ones."""
    configured = initialization.configure(config)
    plain, drawn = flatten(config.initialize(SEEDS)), flatten(initialization.draw(configured, SEEDS))
    weights = [path for path in drawn if path in plain and np.std(plain[path]) > 0]
    return {path: float(np.std(drawn[path]) / np.std(plain[path])) for path in weights}


def test_deep_norm_has_the_papers_scales():
    config = translation(encoder=3, decoder=2)
    configured = DeepNorm().configure(config)
    assert configured.encoder.layers[0].residual.alpha == pytest.approx(0.81 * (3**4 * 2) ** (1 / 16))
    assert configured.decoder.layers[1].residual.alpha == pytest.approx(6**0.25)
    found = ratios(DeepNorm(), config)
    encoder, decoder = 0.87 * (3**4 * 2) ** (-1 / 16), 24**-0.25
    assert found["encoder/layers_0_2/attention/value"] == close_to(encoder, sums=4)
    assert found["encoder/layers_0_2/feed_forward/up"] == close_to(encoder, sums=4)
    assert found["decoder/layers_0_1/cross_attention/output"] == close_to(decoder, sums=4)
    assert found["decoder/layers_0_1/attention/query"] == close_to(1.0, sums=4)
    alone = DeepNorm().configure(post_norm()).decoder.layers[0].residual
    assert alone.alpha == pytest.approx((2 * DEPTH) ** 0.25)


def test_t_fixup_has_the_papers_scales_and_no_norms():
    config = translation(encoder=3, decoder=2)
    bare = dataclasses.replace(config, embeddings=dataclasses.replace(config.embeddings, norm=None))
    assert not [path for path in flatten(TFixup().configure(bare).tensors()) if "norm" in path]
    found = ratios(TFixup(), bare)
    assert found["encoder/layers_0_2/attention/value"] == close_to(0.67 * 3**-0.25, sums=4)
    assert found["decoder/layers_0_1/feed_forward/down"] == close_to(18**-0.25, sums=4)
    assert found["embeddings/token"] == close_to(18**-0.25, sums=4)
    assert found["decoder/layers_0_1/attention/key"] == close_to(1.0, sums=4)
    with pytest.raises(ConfigError, match=r"^embeddings/norm/scale: "):
        TFixup().configure(config)


def test_a_fresh_rezero_stack_is_the_identity():
    config = ReZero().configure(post_norm())
    assert type(config.decoder.layers[0].residual) is ScaledNoNorm
    params, batch = config.initialize(SEEDS), tiny.tokens()
    embed = config.embeddings.bind(params["embeddings"], tiny.WIDTH)
    embedded = embed(batch["input_ids"], positions=np.arange(10)[None, :])
    np.testing.assert_array_equal(config.apply(params, batch, Options()).hidden, embedded)


@pytest.mark.parametrize(("depth", "scale"), [(18, 0.1), (24, 1e-5), (25, 1e-6)])
def test_layer_scale_starts_by_depth(depth, scale):
    config = LayerScale().configure(tiny.decoder_config(*(tiny.layer(),) * depth))
    run = config.initialize(SEEDS)["decoder"][f"layers_0_{depth - 1}"]
    assert_close(run["feed_forward_residual"]["scale"], np.full((depth, tiny.WIDTH), scale), sums=1)
