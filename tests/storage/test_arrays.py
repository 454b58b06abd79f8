"""Parameters on disk: the same bytes whether arrays are held or deferred, and few of the deferred ones at once."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.core.deferred import Deferred, any_deferred
from headjax.core.errors import CheckpointError, ConfigError, DamagedError, ParameterError
from headjax.core.tensors import flatten, map_tensors
from headjax.mesh.mesh import MeshConfig
from headjax.models.model import load, save
from headjax.storage import arrays as stored
from tests import tiny
from tests.alive import Alive
from tests.closeness import assert_trees_equal


@pytest.fixture(scope="module")
def model():
    model = tiny.model(tiny.decoder_config())
    return model.replace(params=jax.tree.map(lambda array: jnp.asarray(array, jnp.bfloat16), model.params))


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("stored") / "model"
    model.save(path)
    return path


def test_deferred_arrays_are_written_as_held_ones_are_one_at_a_time(model, tmp_path):
    alive = Alive()
    later = alive.model(model)
    seen = []

    @contextlib.contextmanager
    def progress(title, total, unit):
        yield lambda done, values: seen.append((title, done, total, unit))

    save(later, tmp_path / "model", progress)
    again = load(tmp_path / "model")
    assert_trees_equal(again.params, model.params)
    assert {array.dtype for array in jax.tree.leaves(again.params)} == {jnp.dtype(jnp.bfloat16)}
    *_, second, first = sorted(array.nbytes for array in jax.tree.leaves(model.params))
    assert first <= alive.most < first + second  # JAX may let go of a small one a moment later
    count = len(jax.tree.leaves(model.params))
    assert seen == [("writing", done, count, "arrays") for done in range(1, count + 1)]


def test_arrays_are_made_in_the_order_of_their_source(model, tmp_path):
    flat, made = flatten(model.params), []
    orders = {name: -place for place, name in enumerate(flat)}

    def later(name, _):
        def make():
            made.append(name)
            return np.asarray(flat[name])

        return Deferred(flat[name].shape, flat[name].dtype, make, orders[name])

    save(model.replace(params=map_tensors(later, model.config.tensors())), tmp_path / "model")
    assert made == list(flat)[::-1]


def test_a_deferred_array_that_is_not_finite_leaves_nothing(model, tmp_path):
    bad = np.full(model.params["embeddings"]["token"].shape, np.inf, jnp.bfloat16)
    embeddings = model.params["embeddings"] | {"token": Alive().array(bad)}
    with pytest.raises(ParameterError, match=r"^embeddings/token: "):
        save(model.replace(params=model.params | {"embeddings": embeddings}), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_lazy_model_reads_what_a_whole_one_holds(model, folder, monkeypatch, tmp_path):
    monkeypatch.setattr(stored, "TOGETHER", 200)
    lazy = load(folder, lazy=True)
    leaves = jax.tree.leaves(lazy.params)
    assert all(isinstance(leaf, Deferred) for leaf in leaves)
    assert len({leaf.order for leaf in leaves}) > 3
    assert_trees_equal(lazy.params, model.params)
    assert_trees_equal(load(folder).params, model.params)
    assert lazy.config == load(folder).config
    save(lazy, tmp_path / "copy")
    save(load(tmp_path / "copy", lazy=True), tmp_path / "copy")  # which is read while its successor is written
    again = load(tmp_path / "copy")
    assert_trees_equal(again.params, model.params)
    assert not any_deferred(again.params)


def test_a_lazy_model_refuses_another_directory_under_its_name_damage_and_a_mesh(model, tmp_path):
    model.save(tmp_path / "model")
    lazy = load(tmp_path / "model", lazy=True)
    with pytest.raises(ConfigError, match=r"^lazy: "):
        load(tmp_path / "model", mesh=MeshConfig(data=2).build(jax.devices()[:2]), lazy=True)
    model.save(tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"model: "):
        np.asarray(lazy.params["embeddings"]["token"])
    data = max((tmp_path / "model" / "params").rglob("d/*"), key=lambda file: file.stat().st_size)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(DamagedError, match=r"differ from their checksum"):
        load(tmp_path / "model", lazy=True)
