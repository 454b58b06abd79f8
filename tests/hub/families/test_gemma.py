"""Gemma 3: two rotary bases, norms around sub-layers, scales; heads scored, removed and converted."""

from __future__ import annotations

import dataclasses
import re

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention.rotary import LinearScaling, RotaryHalves, YarnScaling
from headjax.conversion import convert
from headjax.core.errors import ConfigError
from headjax.core.norms import OffsetRMSNorm
from headjax.core.tensors import flatten
from headjax.heads.head_id import HeadId
from headjax.heads.pruning import prune
from headjax.heads.scores import score_heads
from headjax.hub import from_huggingface, to_huggingface
from headjax.hub.fields import Fields
from headjax.models.residuals import SandwichNorm
from tests import tiny
from tests.closeness import assert_close
from tests.hub.directories import CONFIGS, family, model_of, rounding

GEMMA = CONFIGS["gemma3_text"]
TOKENS = {"input_ids": np.arange(11)[None]}


def read(**fields):
    return family("gemma3_text").read(Fields(GEMMA | fields))


@pytest.fixture(scope="module")
def gemma():
    return model_of(GEMMA)


def test_the_parts_of_a_layer():
    local, whole = read().decoder.layers
    assert (local.window, whole.window) == (4, None)
    assert local.attention.rotary == RotaryHalves(base=1e4)
    assert whole.attention.rotary == RotaryHalves(base=1e6)
    assert local.residual == SandwichNorm(OffsetRMSNorm(1e-6))
    assert local.attention.query_norm == local.attention.key_norm == OffsetRMSNorm(1e-6)
    assert local.attention.scale == 16**-0.5
    assert (local.feed_forward.activation, local.feed_forward.bias) == ("gelu_tanh", False)
    assert read().embeddings.scale_by_width
    assert read().output.softcap is None
    assert read(final_logit_softcapping=30.0).output.softcap == 30.0


def test_both_generations_of_rotary_fields():
    old = read(rope_theta=5e5, rope_local_base_freq=2e4, rope_scaling={"rope_type": "linear", "factor": 8.0})
    new = read(
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        }
    )
    assert old == new
    local, whole = new.decoder.layers
    assert whole.attention.rotary == RotaryHalves(base=5e5, scaling=LinearScaling(8.0))
    assert local.attention.rotary == RotaryHalves(base=2e4)


def test_yarn_in_the_whole_layers_sharpens_their_logits_alone():
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    config = read(rope_scaling=scaling)
    local, whole = (layer.attention for layer in config.decoder.layers)
    assert whole.logit_scale == 16**-0.5 * YarnScaling(4.0, 16).logit_factor
    assert local.logit_scale == 16**-0.5
    assert family("gemma3_text").read(Fields(family("gemma3_text").write(config))) == config


@pytest.mark.parametrize("types", ["sfsf", "ssff", "ss", "ff"])
def test_layers_are_written_and_read_again(types):
    names = {"s": "sliding_attention", "f": "full_attention"}
    config = read(num_hidden_layers=len(types), layer_types=[names[kind] for kind in types])
    written = family("gemma3_text").write(config)
    assert written["layer_types"] == [names[kind] for kind in types]
    assert written.get("sliding_window_pattern") == {"sfsf": 2, "ff": 1}.get(types)
    assert written["hidden_activation"] == "gelu_pytorch_tanh"
    assert family("gemma3_text").read(Fields({"sliding_window": 4} | written)) == config


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: 50.0 is not supported; supported: None"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention: True is not supported; supported: False"),
        ({"sliding_window": None}, "sliding_window: is null, but layer 0 is 'sliding_attention'"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_parameters: expected one object for each of full_att"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "longrope"}}},
            "rope_parameters: full_attention: rope_type: 'longrope' is not supported; supported: 'default', 'linear'",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e5}}, "rope_theta": 1e6},
            "rope_theta: 1000000.0 contradicts the 100000.0 in rope_parameters",
        ),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar: expected a positive integer, got 0"),
    ],
)
def test_odd_fields_are_one_line(fields, said):
    with pytest.raises(ConfigError, match=re.escape(f"config.json: {said}")):
        read(**fields)


def test_removed_heads_are_gates_of_zero_and_are_padded_back(gemma, tmp_path):
    removed = ["decoder/0/1", "decoder/1/0", "decoder/1/1"]
    smaller = prune(gemma, removed)
    gates = jnp.ones((2, 4)).at[jnp.asarray([0, 1, 1]), jnp.asarray([1, 0, 1])].set(0.0)
    expected = gemma(TOKENS, {"decoder": gates}).logits
    assert_close(smaller(TOKENS).logits, expected, sums=tiny.SUMS)
    assert to_huggingface(smaller, tmp_path / "out").layout == "padded"
    np.testing.assert_allclose(from_huggingface(tmp_path / "out")(TOKENS).logits, expected, atol=rounding(gemma))


def test_heads_are_scored_under_their_window(gemma):
    scores = score_heads(gemma, [{"input_ids": np.arange(80).reshape(2, 40) % 20}], statistics=("distance",))
    assert sorted(scores.score("importance")) == [
        HeadId("decoder", layer, head) for layer in (0, 1) for head in range(4)
    ]
    assert min(scores.score("importance").values()) > 0.0
    reach = {
        layer: max(scores.score("distance")[HeadId("decoder", layer, head)] for head in range(4)) for layer in (0, 1)
    }
    assert reach[0] < 3.0 < reach[1]  # a window of 4, and 40 tokens


def test_another_scale_goes_into_the_norm_of_the_queries(gemma, tmp_path):
    layers = [
        dataclasses.replace(layer, attention=dataclasses.replace(layer.attention, scale=0.3))
        for layer in gemma.config.decoder.layers
    ]
    decoder = dataclasses.replace(gemma.config.decoder, layers=tuple(layers))
    other = gemma.replace(config=dataclasses.replace(gemma.config, decoder=decoder))
    assert to_huggingface(other, tmp_path / "out").layout == "padded"
    again = from_huggingface(tmp_path / "out")
    assert again.config.decoder.layers[0].attention.scale == 11**-0.5
    np.testing.assert_allclose(again(TOKENS).logits, other(TOKENS).logits, atol=rounding(other))


def test_a_latent_of_full_rank_is_the_same_model(gemma):
    """Keys are rebuilt, normalised with 1 + weight and turned by the layer's own base, under the layer's window."""
    converted = convert(gemma, "latent:rank=8").model
    assert [layer.window for layer in converted.config.decoder.layers] == [4, None]
    assert_close(converted(TOKENS).logits, gemma(TOKENS).logits, sums=20 * tiny.SUMS)


def test_offset_norms_come_as_they_are(gemma, tmp_path):
    to_huggingface(gemma, tmp_path / "out")
    again = from_huggingface(tmp_path / "out")
    for path, array in flatten(gemma.params).items():
        np.testing.assert_array_equal(flatten(again.params)[path], array, err_msg=path)
