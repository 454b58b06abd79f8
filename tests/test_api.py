"""Public names exist and are explained, plots among them."""

import inspect
import re
from pathlib import Path

import pytest

import headjax
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
    scores = {headjax.HeadId("decoder", layer, head): layer + head / 10 for layer in range(2) for head in range(4)}
    del scores[headjax.HeadId("decoder", 1, 2)]
    plot = headjax.plots.score_map(model(decoder_config()), scores, title="Heads", unit="nats")
    assert len(plot.figure.axes[0].texts) == 7
    assert "<svg" in plot.svg()
