"""The state before the first step: its shards, the caller's parameters, and the numbers of an initialisation."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

from headjax.core.serialize import to_data
from headjax.core.tensors import flatten
from headjax.data.examples import TokenBlocks
from headjax.mesh.mesh import MeshConfig
from headjax.mesh.rules import ShardingConfig
from headjax.training.config import train_config
from headjax.training.state import abstract_state, initial_state, read_initialization, starting_state
from tests import tiny
from tests.training.test_config import FIELDS

MODEL = tiny.decoder_config()


def test_a_state_lies_where_its_abstract_state_says():
    mesh = MeshConfig(data=2, fsdp=2, model=2).build()
    sharding = ShardingConfig()
    made = initial_state(MODEL, optax.adam(0.1), mesh, 0, sharding=sharding)
    wanted = abstract_state(MODEL, optax.adam(0.1), mesh, sharding)
    described = jax.tree.map(lambda array: (array.shape, array.dtype, array.sharding), (made, wanted))
    assert described[0] == described[1]
    assert any(not array.sharding.is_fully_replicated for array in jax.tree.leaves(made.params))
    for path, array in flatten(made.params).items():
        np.testing.assert_array_equal(flatten(made.optimizer[0].mu)[path], np.zeros_like(array))


def test_a_state_keeps_a_copy_of_given_parameters():
    """Training steps donate their state."""
    mesh = MeshConfig(data=1).build(jax.devices()[:1])
    model = tiny.model(MODEL)
    made = initial_state(MODEL, optax.sgd(0.1), mesh, 0, model.params)
    for path, array in flatten(model.params).items():
        copy = flatten(made.params)[path]
        np.testing.assert_array_equal(copy, array)
        assert copy.unsafe_buffer_pointer() != array.unsafe_buffer_pointer(), path


@pytest.mark.parametrize("kind", [None, "deep_norm", "admin"])
def test_a_measured_initialisation_leaves_its_numbers_in_the_workdir(kind, tmp_path):
    config = train_config(FIELDS | {"initialization": kind and {"kind": kind}, "steps": 1})
    mesh = MeshConfig(data=1).build(jax.devices()[:1])
    source = TokenBlocks(np.arange(240, dtype=np.int32) % 24, 12)
    start, optimizer = config.start(), optax.sgd(0.1)
    state = starting_state(config, start, optimizer, mesh, source, tmp_path)
    assert int(state.step) == 0
    assert flatten(state.params).keys() == flatten(start.config.tensors()).keys()
    found = read_initialization(tmp_path)
    if kind is None:
        assert found == []
        return
    (entry,) = found
    assert entry["action"] == "initialize"
    assert to_data(config.initialization).items() <= entry.items()
