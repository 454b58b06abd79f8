"""Sizes that cannot fit into memory are refused with a lower bound that everything that fits passes."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from headjax.core.errors import ConfigError
from headjax.core.limits import host_memory
from headjax.mesh.memory import check_arrays, memory_of
from headjax.mesh.mesh import MeshConfig
from headjax.models.memory import check_batch, check_state
from headjax.models.model import load
from tests import tiny

EXAMPLE = {"input_ids": np.zeros(10, np.int32), "labels": np.zeros(10, np.int32)}


def test_memory_of_simulated_devices_is_that_of_their_host():
    assert memory_of() == memory_of(MeshConfig(data=2).build(jax.devices()[:2])) == host_memory()


def test_the_state_of_a_model():
    config = tiny.decoder_config()
    parameters = tiny.model(config).num_parameters
    check_state("config.model", config, 12 * parameters)
    check_state("config.model", config, None)
    with pytest.raises(ConfigError, match=rf"^config.model: {parameters:,} parameters in training take at least"):
        check_state("config.model", config, 12 * parameters - 1)


def test_the_arrays_of_a_model():
    """All of them, or the largest where they are made one at a time."""
    check_arrays("model", [3, 5], 8)
    check_arrays("model", [3, 5], 5, lazy=True)
    check_arrays("model", [], 1, lazy=True)
    for lazy, bytes_there in ((False, 7), (True, 4)):
        with pytest.raises(ConfigError, match=r"^model: "):
            check_arrays("model", [3, 5], bytes_there, lazy=lazy)


def test_a_directory_larger_than_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    """And is moved all the same where its largest array fits."""
    model = tiny.model(tiny.decoder_config())
    model.save(tmp_path / "model")
    sizes = [array.nbytes for array in jax.tree.leaves(model.params)]
    for needed, lazy in ((sum(sizes), False), (max(sizes), True)):
        monkeypatch.setenv("HEADJAX_MEMORY", str(needed - 1))
        with pytest.raises(ConfigError, match=r"model: "):
            load(tmp_path / "model", lazy=lazy)
        monkeypatch.setenv("HEADJAX_MEMORY", str(max(sizes)))
        assert load(tmp_path / "model", lazy=True).config == model.config


def test_a_batch():
    """Of two arrays of 10 int32, and 10 positions of width 16 in bfloat16."""
    check_batch("--batch-size", 3, EXAMPLE, 16, 3 * (80 + 320))
    check_batch("--batch-size", 4, EXAMPLE, 16, 4 * 80 + 2 * 320, parts=2)
    check_batch("--batch-size", 3, {"pixel_values": np.zeros((2, 2, 3), np.float32)}, 16, 3 * 48)
    with pytest.raises(ConfigError, match=r"^--batch-size: "):
        check_batch("--batch-size", 3, EXAMPLE, 16, 3 * (80 + 320) - 1)
