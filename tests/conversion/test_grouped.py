"""Grouped attention: poolings in order of their errors, and heads that share without loss."""

from __future__ import annotations

import numpy as np

from headjax.attention import RotaryHalves
from headjax.conversion import ToGrouped, convert
from tests import tiny
from tests.conversion.cases import PADDED, attentions, hidden


def test_fitting_beats_aligning_beats_averaging(model) -> None:
    def error(pooling, grouping="consecutive") -> float:
        target = ToGrouped(kv_heads=2, pooling=pooling, grouping=grouping)
        return sum(e.relative_error + e.value_error for e in convert(model, target).errors)

    fitted, aligned, mean = (error(pooling) for pooling in ("fitted", "aligned", "mean"))
    assert fitted < aligned < mean
    assert error("fitted", "best") <= fitted + 1e-6


def test_heads_that_differ_by_a_rotation_share_without_loss() -> None:
    """With and without rotary embeddings, in groups that the search has to find."""
    generator = np.random.default_rng(0)
    for rotary in (None, RotaryHalves()):
        source = tiny.model(
            tiny.decoder_config(tiny.layer(tiny.multi_head(rotary=rotary, projection_bias=False))), seed=3
        )
        params = source.params["decoder"]["layers_0_0"]["attention"]
        turned = dict(params)
        for i, j in ((2, 0), (3, 1)):
            angle = generator.uniform(0, 2, 2)
            rotation = np.zeros((4, 4))
            for pair, a in enumerate(angle):
                k = pair + 2
                rotation[[pair, k], [pair, k]] = np.cos(a)
                rotation[pair, k], rotation[k, pair] = np.sin(a), -np.sin(a)
            if rotary is None:
                rotation = np.linalg.qr(generator.standard_normal((4, 4)))[0]
            turned["key"] = turned["key"].at[:, :, i].set(params["key"][:, :, j] @ rotation)
            turned["value"] = turned["value"].at[:, :, i].set(params["value"][:, :, j] @ rotation)
        layers = source.params["decoder"]["layers_0_0"] | {"attention": turned}
        source = source.replace(params=source.params | {"decoder": source.params["decoder"] | {"layers_0_0": layers}})
        expected = hidden(source, PADDED)
        for pooling in ("fitted", "aligned"):
            converted, errors = convert(source, ToGrouped(kv_heads=2, pooling=pooling))
            assert attentions(converted)[0].ids == (0, 2, 1, 3)
            assert max(errors[0].relative_error, errors[0].value_error) < 1e-3
            np.testing.assert_allclose(hidden(converted, PADDED), expected, atol=1e-3)
