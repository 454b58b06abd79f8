"""Formulations that are multi-head attention with other weights, and those that are not."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headjax.attention import Collaborative, Gated, Grouped, Latent, MultiHead, RotaryInterleaved, Talking, Tucker
from headjax.attention.collaborative import Concatenate
from headjax.core.norms import RMSNorm
from headjax.hub import to_huggingface
from headjax.hub.checking import max_difference
from tests.hub.directories import (
    BERT,
    SIZES,
    T5,
    refused_export,
    replaced,
    rounding,
)

FORMULATIONS = {
    "grouped": Grouped(num_heads=4, kv_heads=2, head_dim=2, projection_bias=True),
    "unequal groups": Grouped(num_heads=3, kv_heads=2, head_dim=2, kv_index=(0, 1, 1), head_ids=(0, 2, 3)),
    "latent": Latent(num_heads=4, rank=3, head_dim=2),
    "latent queries": Latent(num_heads=4, rank=3, head_dim=2, query_rank=5, projection_bias=True, output_bias=True),
    "tucker": Tucker(num_heads=4, query_rank=3, key_rank=2, projection_bias=True, **SIZES),
    "tucker content": Tucker(num_heads=4, query_rank=3, key_rank=1, content_bias=True, **SIZES),
    "collaborative": Collaborative(num_heads=4, shared_dim=2, projection_bias=True, **SIZES),
    "collaborative content": Collaborative(num_heads=4, shared_dim=1, content_bias=True, **SIZES),
}


@pytest.mark.parametrize("name", FORMULATIONS)
def test_formulations_that_are_multi_head_attention(name, tmp_path):
    model = replaced(BERT, FORMULATIONS[name], MultiHead(num_heads=2, head_dim=2))
    assert to_huggingface(model, tmp_path / "out").layout == "padded"
    assert max_difference(model, tmp_path / "out") < rounding(model)


@pytest.mark.parametrize("biased", [False, True])
def test_heads_of_any_size_fit_a_t5(biased, tmp_path):
    """Its heads have a size of their own, but no biases."""
    attention = Collaborative(
        num_heads=4, shared_dim=6, content_bias=biased, value_bias=False, output_bias=False, **SIZES
    )
    model = replaced(T5, attention, attention)
    if biased:
        assert "there is no place for its query bias" in refused_export(model, tmp_path, "padded", family="t5")
        return
    assert to_huggingface(model, tmp_path / "out", family="t5").layout == "padded"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["d_kv"] == 6
    assert max_difference(model, tmp_path / "out") < rounding(model)


def test_shared_dimensions_that_no_head_reads_are_dropped(tmp_path):
    """A full-rank collaborative layer, each head reading its own block of the shared dimensions, is multi-head."""
    attention = Collaborative(num_heads=4, shared_dim=8, mixing_init=Concatenate(), **SIZES)
    model = replaced(BERT, attention, attention)
    blocks = np.kron(np.eye(4, dtype=np.float32), np.ones((1, 2), np.float32))
    run = model.params["encoder"]["layers_0_1"]
    run["attention"]["mixing"] = np.stack([blocks, 2 * blocks])
    assert to_huggingface(model, tmp_path / "out").layout == "padded"
    assert max_difference(model, tmp_path / "out") < rounding(model)


@pytest.mark.parametrize(
    ("attention", "said"),
    [
        (Talking(num_heads=4, logit_heads=4, softmax_heads=4, head_dim=2), "talking attention is no multi-head"),
        (Gated(inner=MultiHead(num_heads=4, head_dim=2)), "gated_heads attention is no multi-head attention"),
        (Latent(num_heads=4, rank=3, head_dim=2, latent_norm=RMSNorm()), "latent attention with a latent_norm"),
        (MultiHead(num_heads=4, head_dim=2, rotary=RotaryInterleaved()), "rotary positions are not those"),
        (Collaborative(num_heads=4, shared_dim=5, **SIZES), "4 heads of size 5 fit no bert of width 8"),
    ],
)
def test_formulations_that_are_not(attention, said, tmp_path):
    message = refused_export(replaced(BERT, attention, MultiHead(num_heads=4, head_dim=2)), tmp_path)
    assert said in message
