"""Public names exist and are explained, plots and the start of lm-eval among them."""

import importlib
import importlib.util
import inspect
import re
import sys
import tomllib
from pathlib import Path

import pytest

import headjax
from headjax import lm_eval
from headjax.heads.head_id import HeadId
from tests.tiny import decoder_config, model

NAMES = [name for name in headjax.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", NAMES)
def test_public_names_exist_and_are_explained(name):
    found = getattr(headjax, name)
    assert inspect.getdoc(found)
    assert name in dir(headjax)


def test_the_documentation_lists_them_all_and_no_others():
    text = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
    first_cells = re.findall(r"^\| (`.*?) \|", text, flags=re.MULTILINE)
    listed = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(listed) == sorted(NAMES)
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        headjax.atention  # noqa: B018
    assert all(hasattr(headjax.plots, name) for name in headjax.plots.__all__)
    assert callable(headjax.gated)


def test_a_map_of_scores_leaves_out_heads_without_one():
    scores = {HeadId("decoder", layer, head): layer + head / 10 for layer in range(2) for head in range(4)}
    del scores[HeadId("decoder", 1, 2)]
    plot = headjax.plots.score_map(model(decoder_config()), scores, title="Heads", unit="nats")
    assert len(plot.figure.axes[0].texts) == 7
    assert "<svg" in plot.svg()


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
