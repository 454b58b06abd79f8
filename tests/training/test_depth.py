"""Measures along depth: norms go layer by layer; `test_deep_training.py` measures whole runs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from headjax.training.depth import layer_norms
from tests import tiny


def test_layer_norms_go_layer_by_layer():
    model = tiny.decoder_config(*[tiny.layer()] * 3)
    params = jax.tree.map(jnp.zeros_like, tiny.model(model).params)
    group = params["decoder"]["layers_0_2"]
    group["attention"]["query"] = group["attention"]["query"].at[1, 0, 0, 0].set(3.0)
    group["feed_forward"]["down"] = group["feed_forward"]["down"].at[1, 0, 0].set(4.0)
    np.testing.assert_allclose(layer_norms(model, params)["decoder"], [0.0, 5.0, 0.0])
