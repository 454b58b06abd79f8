"""Parameters on disk: the same bytes whether arrays are held or deferred, and few of the deferred ones at once."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.core.deferred import Deferred
from headjax.core.errors import ParameterError
from headjax.core.tensors import flatten, map_tensors
from headjax.models.model import load, save
from tests import tiny
from tests.alive import Alive
from tests.closeness import assert_trees_equal


@pytest.fixture(scope="module")
def model():
    model = tiny.model(tiny.decoder_config())
    return model.replace(params=jax.tree.map(lambda array: jnp.asarray(array, jnp.bfloat16), model.params))


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


@pytest.mark.parametrize("name", ["m[1]", "m*?", "modèle 1"])
def test_the_name_of_a_directory_is_no_pattern(model, name, tmp_path):
    """Orbax takes it for one; held arrays and deferred ones, and a directory that was renamed."""
    model.save(tmp_path / name / name)
    assert_trees_equal(load(tmp_path / name / name).params, model.params)
    save(Alive().model(model), tmp_path / name / "deferred")
    (tmp_path / name / "deferred").rename(tmp_path / "plain")
    assert_trees_equal(load(tmp_path / "plain").params, model.params)
    (tmp_path / "plain").rename(tmp_path / f"2 {name}")
    assert_trees_equal(load(tmp_path / f"2 {name}").params, model.params)


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
