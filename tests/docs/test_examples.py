"""Every public name has an example in its docstring, which runs and prints what it says."""

import ast
import doctest
import importlib
import inspect
import re
import types
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import headjax


def text_below(module: types.ModuleType, name: str) -> str:
    """Return the string below the assignment of a name, which is its docstring: a type has none of its own."""
    body = ast.parse(inspect.getsource(module)).body
    (at,) = (i for i, line in enumerate(body) if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == name)
    below = body[at + 1]
    return below.value.value if isinstance(below, ast.Expr) else ""


def docstring(name: str) -> str:
    found = getattr(headjax, name)
    if isinstance(found, type | types.FunctionType | types.ModuleType):
        return inspect.getdoc(found) or ""
    module = re.search(rf"^from ([\w.]+) import {name} as", Path(f"{headjax.__file__}i").read_text(), re.MULTILINE)
    return text_below(importlib.import_module(module[1]), name)


NAMES = [name for name in headjax.__all__ if name != "__version__"]


def example(name: str, **names: object) -> doctest.DocTest:
    return doctest.DocTestParser().get_doctest(docstring(name), names, name, None, None)


def test_every_public_name_has_an_example():
    assert [name for name in NAMES if not example(name).examples] == []


@pytest.mark.whole
@pytest.mark.parametrize("name", NAMES)
def test_an_example_prints_what_it_says(name, monkeypatch, tmp_path):
    monkeypatch.chdir(Path(__file__).parents[2])
    test = example(name, headjax=headjax, jnp=jnp, np=np, nnx=nnx, folder=tmp_path)
    assert doctest.DocTestRunner().run(test).failed == 0
