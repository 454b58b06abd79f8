"""Which parameters take weight decay: every weight, and no bias, normalisation or multiplier of a residual branch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from headjax.attention import Collaborative, Gated, MultiHead, Talking, Tucker
from headjax.core.configuration import load_config_file
from headjax.core.serialize import from_data
from headjax.core.tensors import Constant, Ones, Zeros, flatten
from headjax.initialization import Admin, DSInit, LayerScale, ReZero
from headjax.models.recipe import Recipe
from headjax.training.optimizer import AdamW, ConstantRate, decayed
from tests.attention.formulations import FORMULATIONS, WIDTH
from tests.tiny import decoder_config, layer

CONFIGS = Path(__file__).parents[2] / "configs"
PROJECTIONS = "query_bias key_bias value_bias output_bias"
BY_FORMULATION = {
    "multi_head": ("query key value output", PROJECTIONS),
    "fixed_head_size": ("query key value output", "output_bias"),
    "rotary_halves": ("query key value output", PROJECTIONS),
    "rotary_interleaved": ("query key value output", PROJECTIONS),
    "grouped": ("query key value output", PROJECTIONS),
    "multi_query": ("query key value output", ""),
    "ragged_grouped": ("query key value output", "query_norm/scale key_norm/scale"),
    "collaborative": ("query key mixing value output", f"{PROJECTIONS} content_bias"),
    "tucker": ("query key mixing value output", f"{PROJECTIONS} content_bias"),
    "latent": ("latent query key value output", "query_bias value_bias output_bias"),
    "latent_rotary": (
        "latent query_latent query rotary_key key value output",
        "latent_norm/scale query_norm/scale",
    ),
    "compressed": (
        "latent inner/query inner/key inner/value inner/output",
        "inner/query_norm/scale inner/key_norm/scale",
    ),
    "shared_rotary": (
        "inner/query inner/value inner/output key mixing",
        "inner/query_bias inner/value_bias key_bias",
    ),
    "shared_rotary_normalised": (
        "inner/query inner/key inner/value inner/output key mixing",
        "inner/query_norm/scale",
    ),
    "talking": ("query key value logit_mixing weight_mixing output", PROJECTIONS),
    "gated": (
        "inner/query inner/key inner/value inner/output gate",
        "inner/query_bias inner/key_bias inner/value_bias inner/output_bias gate_bias",
    ),
    "gated_grouped": ("inner/query inner/key inner/value inner/output gate", "gate_bias"),
}


def split(tensors):
    """Paths of the tensors that take weight decay, and of those that take none."""
    flags = flatten(decayed(tensors))
    return {path for path, flag in flags.items() if flag}, {path for path, flag in flags.items() if not flag}


@pytest.mark.parametrize("name", FORMULATIONS)
def test_the_decayed_tensors_of_every_formulation(name):
    with_decay, without = BY_FORMULATION[name]
    assert split(FORMULATIONS[name].tensors(WIDTH, WIDTH)) == (set(with_decay.split()), set(without.split()))


def of_layers(run, text):
    return {f"{run}/{name}" for name in text.split()}


NORMS = "attention_residual/norm/scale attention_residual/norm/bias"
NORMS += " feed_forward_residual/norm/scale feed_forward_residual/norm/bias"
LAYER = "attention/query attention/key attention/value attention/output feed_forward/up feed_forward/down"
LAYER_BIASES = "attention/query_bias attention/key_bias attention/value_bias attention/output_bias"
LAYER_BIASES += " feed_forward/up_bias feed_forward/down_bias"
CROSSED = " cross_attention/query cross_attention/key cross_attention/value cross_attention/output"
CROSSED_BIASES = " cross_attention/query_bias cross_attention/key_bias cross_attention/value_bias"
CROSSED_BIASES += " cross_attention/output_bias"
CROSSED_NORMS = " cross_attention_residual/norm/scale cross_attention_residual/norm/bias"
BY_CONFIG = {
    "papers/bert.py": (
        of_layers("encoder/layers_0_11", LAYER)
        | of_layers("embeddings", "token position segment")
        | {"pooler/kernel", "output/masked/transform", "output/next_sentence/kernel"},
        of_layers("encoder/layers_0_11", f"{LAYER_BIASES} {NORMS}")
        | of_layers("embeddings", "norm/scale norm/bias")
        | of_layers("output", "masked/bias masked/transform_bias masked/norm/scale masked/norm/bias next_sentence/bias")
        | {"pooler/bias"},
    ),
    "papers/transformer_base.py": (
        of_layers("encoder/layers_0_5", LAYER)
        | of_layers("decoder/layers_0_5", LAYER + CROSSED)
        | {"embeddings/token"},
        of_layers("encoder/layers_0_5", f"{LAYER_BIASES} {NORMS}")
        | of_layers("decoder/layers_0_5", f"{LAYER_BIASES} {NORMS} {CROSSED_BIASES} {CROSSED_NORMS}"),
    ),
    "papers/collaborative_deit.py": (
        of_layers("encoder/layers_0_11", LAYER)
        | of_layers("patches", "kernel class_token position")
        | {"output/kernel"},
        of_layers("encoder/layers_0_11", f"{LAYER_BIASES} {NORMS}")
        | of_layers("encoder/final_norm", "scale bias")
        | {"patches/bias", "output/bias"},
    ),
    "small/language_model.py": (
        of_layers("decoder/layers_0_3", LAYER) | of_layers("embeddings", "token position"),
        of_layers("decoder/layers_0_3", f"{LAYER_BIASES} {NORMS}") | of_layers("decoder/final_norm", "scale bias"),
    ),
}


@pytest.mark.parametrize("name", BY_CONFIG)
def test_the_decayed_tensors_of_whole_models(name):
    model = from_data(Recipe, load_config_file(str(CONFIGS / name)).model.to_dict()).build()
    assert split(model.tensors()) == BY_CONFIG[name]


@pytest.mark.parametrize(
    ("initialization", "residual", "name"),
    [(Admin(), "post_norm", "shortcut"), (LayerScale(), "pre_norm", "scale"), (ReZero(), "pre_norm", "scale")],
)
def test_multipliers_of_residual_branches_are_not_decayed(initialization, residual, name):
    recipe = load_config_file(str(CONFIGS / "small" / "language_model.py")).model.to_dict() | {
        "residual": {"kind": residual}
    }
    model = initialization.configure(from_data(Recipe, recipe).build())
    multipliers = of_layers("decoder/layers_0_3", f"attention_residual/{name} feed_forward_residual/{name}")
    assert multipliers <= split(model.tensors())[1]


@pytest.mark.parametrize("start", [Ones, Zeros(), Constant(0.3)])
def test_how_a_weight_starts_does_not_switch_its_decay(start):
    sizes = {"num_heads": 2, "value_dim": 4, "head_dim": 4}
    for attention, weights in (
        (Collaborative(shared_dim=4, mixing_init=start, **sizes), {"mixing"}),
        (Tucker(query_rank=3, key_rank=3, mixing_init=start, **sizes), {"mixing"}),
        (
            Talking(num_heads=2, logit_heads=2, softmax_heads=2, head_dim=4, mixing_init=start),
            {"logit_mixing", "weight_mixing"},
        ),
        (Gated(inner=MultiHead(num_heads=2, head_dim=4), kernel_init=start), {"gate"}),
    ):
        assert weights <= split(attention.tensors(8, 8))[0]


def test_the_optimizer_shrinks_a_mixing_matrix_that_starts_as_ones():
    attention = Collaborative(num_heads=2, shared_dim=4, value_dim=4, head_dim=4, mixing_init=Ones)
    tensors = attention.tensors(8, 8)
    params = jax.tree.map(lambda tensor: jnp.ones(tensor.shape), tensors)
    optimizer = AdamW(schedule=ConstantRate(peak=0.1), weight_decay=0.5).build(tensors, 1)
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    assert float(updates["mixing"][0, 0]) == pytest.approx(-0.05)
    assert float(jnp.abs(updates["output_bias"]).max()) == 0.0


def test_an_initialisation_by_depth_scales_what_starts_as_ones():
    attention = Collaborative(num_heads=4, shared_dim=8, value_dim=4, head_dim=4, mixing_init=Ones)
    model = decoder_config(*(layer(attention),) * 4)
    key = jax.random.key(0)
    plain, scaled = (flatten(params) for params in (model.initialize(key), DSInit().draw(model, key)))
    ratio = scaled["decoder/layers_0_3/attention/mixing"] / plain["decoder/layers_0_3/attention/mixing"]
    expected = [(1 / depth) ** 0.5 for depth in (1, 2, 3, 4)]
    assert ratio[:, 0, 0].tolist() == pytest.approx(expected)


def test_a_stacked_declaration_keeps_its_decay():
    for tensor in flatten(FORMULATIONS["multi_head"].tensors(WIDTH, WIDTH)).values():
        assert tensor.stack(3).decay == tensor.decay
        assert dataclasses.replace(tensor, init=Constant(2.0)).decay == tensor.decay
