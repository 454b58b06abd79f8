"""Parameters on disk."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import headjax
from tests import tiny
from tests.closeness import assert_trees_equal


@pytest.fixture(scope="module")
def model():
    model = tiny.model(tiny.decoder_config())
    return model.replace(params=jax.tree.map(lambda array: jnp.asarray(array, jnp.bfloat16), model.params))


@pytest.mark.parametrize("name", ["m[1]", "m*?", "modèle 1"])
def test_the_name_of_a_directory_is_no_pattern(model, name, tmp_path):
    """Orbax takes it for one; also of a directory that was renamed."""
    model.save(tmp_path / name / name)
    assert_trees_equal(headjax.load(tmp_path / name / name).params, model.params)
    (tmp_path / name / name).rename(tmp_path / "plain")
    assert_trees_equal(headjax.load(tmp_path / "plain").params, model.params)
    (tmp_path / "plain").rename(tmp_path / f"2 {name}")
    assert_trees_equal(headjax.load(tmp_path / f"2 {name}").params, model.params)
