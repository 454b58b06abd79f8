"""The start of lm-eval with headjax's models: it registers the adapter, and says when lm-eval is missing."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

from headjax import lm_eval


def test_the_entry_point_names_the_adapter():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["lm_eval.models"] == {lm_eval.NAME: lm_eval.TARGET}
    assert any(wanted.startswith("lm-eval") for wanted in project["optional-dependencies"]["eval"])


def test_without_lm_eval_it_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", None)
    assert lm_eval.main() == 2
    error = capsys.readouterr().err
    assert "pip install '.[eval]' from a checkout" in error
    assert error.count("\n") == 1


@pytest.mark.parity
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="needs the extra eval: lm_eval not installed")
def test_the_adapter_is_registered_beside_lm_evals_own(monkeypatch, capsys):
    from lm_eval.api.registry import model_registry

    ran = []
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: ran.append(sys.argv))
    assert lm_eval.main() == 0
    assert ran
    assert {"hf", "headjax"} <= set(model_registry.keys())
    module, _, name = lm_eval.TARGET.partition(":")
    assert model_registry.get("headjax") is getattr(importlib.import_module(module), name)
