"""The state before the first step: its shards, the caller's parameters, and the numbers of an initialisation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import headjax
from headjax.training.step import Trainer
from tests import tiny
from tests.closeness import assert_trees_equal
from tests.tiny import flatten

MODEL = tiny.decoder_config()


def test_a_state_lies_where_its_abstract_state_says():
    mesh = headjax.MeshConfig(data=2, fsdp=2, model=2).build()
    trainer = Trainer(MODEL, optax.adam(0.1), mesh)
    made, wanted = trainer.first_state(), trainer.abstract_state()
    described = jax.tree.map(lambda array: (array.shape, array.dtype, array.sharding), (made, wanted))
    assert described[0] == described[1]
    assert any(not array.sharding.is_fully_replicated for array in jax.tree.leaves(made.params))
    assert_trees_equal(made.optimizer[0].mu, jax.tree.map(np.zeros_like, made.params))


def test_a_state_keeps_a_copy_of_given_parameters():
    """Training steps donate their state."""
    mesh = headjax.MeshConfig(data=1).build(jax.devices()[:1])
    model = tiny.model(MODEL)
    made = Trainer(MODEL, optax.sgd(0.1), mesh).first_state(model.params)
    assert_trees_equal(made.params, model.params)
    for path, array in flatten(model.params).items():
        assert flatten(made.params)[path].unsafe_buffer_pointer() != array.unsafe_buffer_pointer(), path


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_parameters_of_a_short_type_are_trained_in_float32(dtype):
    """Steps smaller than half a unit in the last place would be lost; moments would be as coarse."""
    mesh = headjax.MeshConfig(data=1).build(jax.devices()[:1])
    coarse = jax.tree.map(lambda array: array.astype(dtype), tiny.model(MODEL).params)
    trainer = Trainer(MODEL, optax.adam(1e-5), mesh)
    with pytest.warns(UserWarning, match=jnp.dtype(dtype).name):
        made = trainer.first_state(coarse)
    wanted = trainer.abstract_state()  # onto which a checkpoint is restored
    assert jax.tree.map(lambda array: array.dtype, made) == jax.tree.map(lambda array: array.dtype, wanted)
    assert_trees_equal(made.params, jax.tree.map(lambda array: array.astype(jnp.float32), coarse))
