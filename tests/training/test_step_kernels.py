"""A train step over several devices takes a kernel that XLA cannot partition, and learns the same."""

from __future__ import annotations

import math

import jax
import numpy as np
import optax
import pytest

from headjax.core.tensors import flatten
from headjax.evaluation.evaluate import measure_batch
from headjax.mesh.distributed import put_batch
from headjax.mesh.mesh import MeshConfig
from headjax.models import Compute
from headjax.training.state import initial_state
from headjax.training.step import train_step
from tests import tiny
from tests.closeness import assert_close, assert_trees_close

MODEL = tiny.decoder_config(tiny.layer(tiny.collaborative()))


def after_one_step(kernel, parts=1, **sizes):
    mesh = MeshConfig(**sizes).build(jax.devices()[: math.prod(sizes.values())])
    optimizer, compute = optax.sgd(0.1), Compute(attention=kernel)
    step = train_step(MODEL, optimizer, mesh, compute=compute, seed=0, accumulate=parts)
    batch = put_batch(tiny.tokens(batch=4), mesh)
    state, metrics = step(initial_state(MODEL, optimizer, mesh, 0), batch)
    return metrics, state.params, measure_batch(MODEL, None, compute, state.params, batch, mesh=mesh)[0]


@pytest.fixture(scope="module")
def expected():
    return after_one_step("einsum", data=1)


@pytest.mark.parametrize("sizes, parts", [({"data": 2, "model": 2}, 1), ({"data": 2}, 2)])
def test_a_pallas_kernel_trains_over_a_mesh_as_the_reference_does(sizes, parts, expected):
    actual = after_one_step("collaborative_pallas", parts, **sizes)
    # A key's bias starts at zero and its gradient is zero but for what is left of terms that cancel.
    assert_trees_close(flatten(actual[1]), flatten(expected[1]), sums=2 * tiny.SUMS, floor=0.1)
    for one, other in zip(jax.tree.leaves(expected[::2]), jax.tree.leaves(actual[::2]), strict=True):
        assert_close(np.asarray(other), np.asarray(one), sums=2 * tiny.SUMS)
