"""The variants of configs/small/deep.py have the same heads and nearly the same parameters."""

import json
from pathlib import Path

import pytest

from headjax.cli import main
from headjax.core.configuration import load_config_file
from headjax.core.errors import ConfigError
from headjax.core.tensors import count
from headjax.models.residuals import PostNorm, PreNorm, ScaledPostNorm
from headjax.training.config import train_config

FILE = Path(__file__).parents[2] / "configs" / "small" / "deep.py"
HEADS, LAYERS = 8, 3
RESIDUALS = {
    "post_norm": PostNorm,
    "deep": PostNorm,
    "deep_admin": ScaledPostNorm,
    "deep_pre_norm": PreNorm,
    "pre_norm": PreNorm,
}


@pytest.mark.parametrize("text", ["wikitext2", "multi30k"])
@pytest.mark.parametrize("variant", RESIDUALS)
def test_variants_have_equal_heads_and_nearly_equal_parameters(variant, text):
    config = train_config(load_config_file(f"{FILE}:variant={variant},text={text},seed=2"))
    model = config.start().config
    shallow = train_config(load_config_file(f"{FILE}:variant=post_norm,text={text}")).start().config
    for attentions in model.attentions().values():
        assert sum(attention.num_heads for attention in attentions) == HEADS * LAYERS
        assert len(attentions) == (HEADS * LAYERS if variant.startswith("deep") else LAYERS)
    for stack in model.stacks().values():
        assert {type(layer.residual) for layer in stack.layers} == {RESIDUALS[variant]}
    assert 1.0 <= count(model.tensors()) / count(shallow.tensors()) < 1.1
    assert config.seed == 2


def test_inspecting_the_config_counts_what_admin_adds(tmp_path):
    path = tmp_path / "inspected.json"
    counts = {}
    for variant in ("deep", "deep_admin"):
        assert main(["inspect", "--config", f"{FILE}:variant={variant}", "--json", str(path)]) == 0
        counts[variant] = json.loads(path.read_text())["parameters"]
    assert counts["deep_admin"] - counts["deep"] == 2 * HEADS * LAYERS * 64


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match=r"deep\.py: "):
        load_config_file(f"{FILE}:variant=deeep")
    with pytest.raises(ConfigError, match=r"deep\.py: "):
        load_config_file(f"{FILE}:text=wiki")
