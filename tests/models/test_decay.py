"""Which parameters take weight decay: every weight, and no bias, normalisation or multiplier of a residual branch.

`tests/mesh/shardings` lists them for the papers' models and every formulation.
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from headjax.attention import Collaborative, Gated, MultiHead, Talking, Tucker
from headjax.core.serialize import from_data
from headjax.core.tensors import Constant, Ones, Zeros, flatten, stack_weight
from headjax.initialization import Admin, DSInit, LayerScale, ReZero
from headjax.models.recipe import Recipe
from headjax.training.config_file import load_config_file
from headjax.training.optimizer import AdamW, ConstantRate, decayed
from tests.attention.formulations import FORMULATIONS, WIDTH
from tests.tiny import decoder_config, layer

CONFIGS = Path(__file__).parents[2] / "configs"


def of_layers(run, text):
    return {f"{run}/{name}" for name in text.split()}


def split(tensors):
    """Paths of the tensors that take weight decay, and of those that take none."""
    flags = flatten(decayed(tensors))
    return {path for path, flag in flags.items() if flag}, {path for path, flag in flags.items() if not flag}


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
        assert stack_weight(tensor, 3).decay == tensor.decay
