"""DeepNorm has its published numbers."""

from __future__ import annotations

import numpy as np
import pytest

from headjax.core.tensors import flatten
from headjax.initialization import DeepNorm
from tests.closeness import close_to
from tests.initialization.models import DEPTH, SEEDS, post_norm, translation


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
