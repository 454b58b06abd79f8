"""Deferred arrays: made when asked for, each time anew, and stacked and sliced without being made."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.core.deferred import Deferred, any_deferred, deferred, held, layer_of, stacked
from headjax.core.errors import ParameterError


class Source:
    """Makes an array and counts how often."""

    def __init__(self, array):
        self.array, self.made = array, []

    def deferred(self, order=0):
        def make():
            self.made.append(order)
            return self.array

        return Deferred(self.array.shape, self.array.dtype, make, order)


@pytest.fixture
def source():
    return Source(np.arange(6, dtype=np.float32).reshape(3, 2))


def test_an_array_is_made_whenever_it_is_asked_for(source):
    array = source.deferred()
    assert (array.shape, array.ndim, array.nbytes, array.dtype) == ((3, 2), 2, 24, np.float32)
    assert source.made == []
    np.testing.assert_array_equal(np.asarray(array), source.array)
    np.testing.assert_array_equal(jnp.asarray(array), source.array)
    assert source.made == [0, 0]


def test_layers_and_stacks_are_deferred(source):
    layers = [layer_of(source.deferred(), index) for index in (2, 0)]
    both = stacked(layers)
    assert isinstance(both, Deferred)
    assert (both.shape, source.made) == ((2, 2), [])
    np.testing.assert_array_equal(np.asarray(both), source.array[[2, 0]])


def test_a_stack_has_the_type_that_holds_all(source):
    half = jnp.ones(2, jnp.bfloat16)
    both = stacked([half, layer_of(source.deferred(), 1)])
    assert both.dtype == np.asarray(both).dtype == np.float32
    np.testing.assert_array_equal(np.asarray(both), [[1, 1], [2, 3]])
    assert not any_deferred(stacked([half, half]))


def test_held_makes_the_deferred_ones_in_the_order_of_their_source(source):
    tree = {"a": source.deferred(3), "b": jnp.ones(2), "c": {"d": source.deferred(1), "none": {}}}
    assert any_deferred(tree)
    found = held(tree)
    assert not any_deferred(found)
    assert source.made == [1, 3]
    assert found["b"] is tree["b"]
    assert isinstance(found["c"]["d"], jax.Array)
    assert found["c"]["none"] == {}


def test_a_held_array_can_be_deferred():
    array = jnp.arange(3)
    np.testing.assert_array_equal(np.asarray(deferred(array)), array)
    assert deferred(deferred(array)).shape == (3,)


def test_values_that_are_not_finite_name_the_array():
    bad = deferred(np.array([1.0, np.nan])).finite("embeddings/token")
    with pytest.raises(ParameterError, match=r"^embeddings/token: "):
        np.asarray(bad)
