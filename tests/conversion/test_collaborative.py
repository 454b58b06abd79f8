"""Collaborative attention: biases and scales are carried."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from headjax.conversion import ToCollaborative, convert
from headjax.heads.surgery import map_attention
from tests import tiny
from tests.closeness import assert_close
from tests.conversion.cases import EXACT, PADDED, attentions, encoder, hidden


def test_the_query_bias_and_the_original_scale_stay_exact_at_half_the_size() -> None:
    """All queries equal: what is left of the logits is the bias's content, whatever the rank.

    The published implementation divides by the compressed size, which multiplies all logits by sqrt(2) here.
    """
    attention = tiny.multi_head(num_heads=2, head_dim=8)
    generator = np.random.default_rng(0)
    # Two heads that read the same queries and keys are exact at half of num_heads * head_dim.
    # Logits are of the order of 1, so that the fit's relative error bounds that of the outputs.
    shared = {name: 0.3 * generator.standard_normal((tiny.WIDTH, 1, 8)).astype(np.float32) for name in ("query", "key")}
    source = encoder(attention, num_layers=1)
    layer = source.params["encoder"]["layers_0_0"]["attention"]
    repeated = {name: jnp.asarray(np.repeat(array, 2, axis=1))[None] for name, array in shared.items()}
    params = source.params | {
        "encoder": source.params["encoder"]
        | {"layers_0_0": source.params["encoder"]["layers_0_0"] | {"attention": layer | repeated}}
    }
    source = source.replace(params=params)
    converted, errors = convert(source, ToCollaborative(shared_dim=8))
    assert errors[0].relative_error < 1e-3
    assert attentions(converted)[0].head_dim == 8
    # The fit is iterative and stops at another error on another processor: that error is the unit of the outputs'.
    expected = hidden(source, PADDED)
    bound = 4.0 * errors[0].relative_error * np.abs(expected).max()
    assert np.abs(hidden(converted, PADDED) - expected).max() < bound

    def at_half(found):
        return found.module.like(dataclasses.replace(found.config, head_dim=found.config.head_dim // 2), found.params)

    halved = map_attention(converted, at_half)
    assert np.abs(hidden(halved, PADDED) - expected).max() > 3.0 * bound, "another scale is seen"


def test_key_biases_vanish_and_query_biases_become_the_content_bias(model) -> None:
    converted, _ = convert(model, EXACT["collaborative"])
    source, new = (m.params["encoder"]["layers_0_1"]["attention"] for m in (model, converted))
    expected = np.einsum("lmhd,lhd->lmh", source["key"], source["query_bias"])
    assert_close(new["content_bias"], expected, sums=tiny.SUMS)
    assert set(new) == {"query", "key", "mixing", "content_bias", "value", "value_bias", "output", "output_bias"}
