"""Examples in docstrings of public names run and print what they say."""

import doctest
import inspect
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import headjax

EXAMPLES = {name: text for name in headjax.__all__ if ">>>" in (text := inspect.getdoc(getattr(headjax, name)) or "")}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_says(name, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    names = {"headjax": headjax, "jnp": jnp, "np": np, "nnx": nnx}
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], names, name, None, None)
    assert doctest.DocTestRunner().run(test).failed == 0
