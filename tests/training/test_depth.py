"""Measures along depth: layer by layer, also where layers share their parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from headjax.mesh.mesh import MeshConfig
from headjax.models.compute import Compute
from headjax.models.config import Options
from headjax.models.encoder import Albert
from headjax.models.sublayers import Dense
from headjax.models.tasks import MaskedLanguageModel
from headjax.training.depth import depth_measurement, layer_norms
from tests import tiny
from tests.closeness import assert_close

LAYERS = 3


@pytest.mark.whole
def test_shared_layers_have_variances_of_their_own_and_one_gradient():
    model = Albert(
        vocab_size=30,
        width=16,
        embedding_size=8,
        num_layers=LAYERS,
        attention=tiny.multi_head(4),
        feed_forward=Dense(32),
        pooler=None,
        task=MaskedLanguageModel(),
        dropout=0.0,
        attention_dropout=0.0,
    ).build()
    before = model.initialize(jax.random.key(0))
    tokens = tiny.tokens(2, 6)["input_ids"] % 30
    batch = {"input_ids": jnp.asarray(tokens), "labels": jnp.asarray(tokens)}
    after = jax.tree.map(lambda array: 0.5 * array, before)
    mesh = MeshConfig(data=1).build(jax.devices()[:1])
    depth = depth_measurement(model, mesh, compute=Compute(), seed=0)(before, after, batch, 0)

    gradient = jax.grad(lambda params: model.loss(model.apply(params, batch, Options()), batch).mean())(before)
    (group,) = model.stacks()["encoder"].groups
    assert_close(
        depth.gradient_norm["encoder"],
        np.full(LAYERS, optax.tree.norm(gradient["encoder"][group.name])),
        sums=2 * tiny.SUMS,
    )
    assert_close(depth.update_ratio["encoder"], np.full(LAYERS, 0.5), sums=tiny.SUMS)
    assert len(np.unique(np.asarray(depth.branch_variance["encoder"]))) == 2 * LAYERS
    np.testing.assert_allclose(depth.stream_variance["encoder"], np.ones(2 * LAYERS), rtol=0.01)


def test_layer_norms_go_layer_by_layer():
    model = tiny.decoder_config(*[tiny.layer()] * LAYERS)
    params = jax.tree.map(jnp.zeros_like, model.initialize(jax.random.key(0)))
    run = params["decoder"][f"layers_0_{LAYERS - 1}"]
    run["attention"]["query"] = run["attention"]["query"].at[1, 0, 0, 0].set(3.0)
    run["feed_forward"]["down"] = run["feed_forward"]["down"].at[1, 0, 0].set(4.0)
    np.testing.assert_allclose(layer_norms(model, params)["decoder"], [0.0, 5.0, 0.0])
