"""Rotary positions in ONNX: pairs of either kind, dimensions that do not turn, and heads with pairs of their own."""

import importlib.util

import pytest

import headjax
from headjax.nn.rotary import RotaryHalves, RotaryInterleaved
from tests import tiny
from tests.closeness import tolerance
from tests.hub.directories import CONFIGS, replaced

installed = all(map(importlib.util.find_spec, ("onnx", "onnxruntime")))

ROTARY = {
    "halves": {"head_dim": 4, "rotary": RotaryHalves()},
    "halves of some dimensions": {"head_dim": 6, "rotary": RotaryHalves(dim=4)},
    "interleaved": {"head_dim": 4, "rotary": RotaryInterleaved()},
    "interleaved of some dimensions": {"head_dim": 6, "rotary": RotaryInterleaved(dim=4)},
    "pairs of each head": {"head_dim": 4, "rotary": RotaryHalves(dim=6), "frequencies": ((0, 2), (1, 2))},
}


@pytest.mark.parity
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not installed, reason="needs the onnx extra")
@pytest.mark.parametrize("options", ROTARY.values(), ids=ROTARY)
@pytest.mark.parametrize("family", ["bert", "roberta", "vit"])  # of RoBERTa, padding has the position -1
def test_onnx_rotates_as_the_model_does(family, options, tmp_path):
    attention = headjax.Kind(headjax.MultiHeadAttention, num_heads=2, **options)
    model = replaced(CONFIGS[family], attention, attention)
    assert headjax.to_huggingface(model, tmp_path / "out", "onnx").max_difference < tolerance(tiny.SUMS)
