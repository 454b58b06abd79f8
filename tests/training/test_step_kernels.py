"""A train step over several devices takes a kernel that XLA cannot partition, and learns the same."""

from __future__ import annotations

import jax
import numpy as np
import optax

from headjax.models import Compute
from headjax.parallel.mesh import MeshConfig
from headjax.training.state import initial_state
from headjax.training.step import evaluation_step, put_batch, train_step
from tests import tiny


def test_a_pallas_kernel_trains_over_a_mesh_as_the_reference_does():
    model = tiny.decoder_config(tiny.layer(tiny.collaborative()))
    mesh = MeshConfig(data=2, model=2).build(jax.devices()[:4])
    optimizer = optax.sgd(0.1)
    batch = put_batch(tiny.tokens(), mesh)

    def after_one_step(kernel):
        compute = Compute(attention=kernel)
        state = initial_state(model, optimizer, mesh, 0)
        state, metrics = train_step(model, optimizer, mesh, compute=compute, seed=0)(state, batch)
        return metrics, state.params, evaluation_step(model, mesh, compute=compute)(state.params, batch)

    expected, actual = after_one_step("einsum"), after_one_step("collaborative_pallas")
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
        np.testing.assert_allclose(np.asarray(other), np.asarray(one), rtol=1e-4, atol=1e-5)
