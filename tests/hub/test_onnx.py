"""ONNX: onnxruntime computes what the model computes, also where Hugging Face has no name for it."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest

from headjax.attention import Collaborative, Latent, Talking
from headjax.cli import main
from headjax.core.errors import HeadjaxError
from headjax.heads.pruning import prune
from headjax.hub import to_huggingface
from headjax.hub.checking import example_batch
from headjax.hub.onnx import to_onnx
from tests import tiny
from tests.closeness import assert_close, tolerance
from tests.hub.directories import BERT, CONFIGS, LLAMA, RAGGED, SIZES, model_of, replaced

installed = importlib.util.find_spec("jax2onnx") is not None
needs_onnx = pytest.mark.skipif(not installed, reason="needs the onnx extra")
pytestmark = pytest.mark.filterwarnings("default")


def check(model, folder):
    """Another number of examples than the file was made with gives the same outputs as the model."""
    import onnxruntime

    batch = {name: np.concatenate([array, array[:1]]) for name, array in example_batch(model, 6).items()}
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    assert {entry.name for entry in session.get_inputs()} == set(batch)
    hidden, logits = session.run(["hidden", "logits"], batch)
    expected = model(batch)
    assert_close(hidden, expected.hidden, sums=tiny.SUMS)
    assert_close(logits, expected.logits, sums=tiny.SUMS)


@needs_onnx
@pytest.mark.parametrize("name", ["bert", "llama", "t5", "vit"])
def test_architectures(name, tmp_path):
    model = model_of(CONFIGS[name])
    exported = to_onnx(model, tmp_path / "out", length=6)
    assert exported.layout == "onnx"
    assert exported.max_difference < tolerance(tiny.SUMS)
    check(model, tmp_path / "out")


@needs_onnx
def test_models_without_a_name(tmp_path):
    model = replaced(
        BERT,
        Talking(num_heads=3, logit_heads=4, softmax_heads=4, head_dim=2),
        Latent(num_heads=2, rank=3, head_dim=2),
    )
    to_onnx(model, tmp_path / "one", length=6)
    check(model, tmp_path / "one")
    model = replaced(BERT, *[Collaborative(num_heads=4, shared_dim=5, content_bias=True, **SIZES)] * 2)
    to_onnx(model, tmp_path / "two", length=6)
    check(model, tmp_path / "two")


@needs_onnx
def test_ragged_on_the_command_line(tmp_path, capsys):
    model = prune(model_of(BERT), RAGGED)
    model.save(tmp_path / "model")
    assert (
        main(
            [
                "export",
                str(tmp_path / "model"),
                str(tmp_path / "out"),
                "--layout",
                "onnx",
                "--length",
                "6",
                "--json",
                "-",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["max_difference"] < tolerance(tiny.SUMS)
    check(model, tmp_path / "out")
    described = json.loads((tmp_path / "out" / "inputs.json").read_text())
    assert described["input_ids"] == {"shape": ["batch", 6], "dtype": "int32"}


@needs_onnx
def test_a_length_beyond_the_positions(tmp_path):
    with pytest.raises(HeadjaxError, match="length: must be at least 1 and at most 10, got 11"):
        to_onnx(model_of(BERT), tmp_path / "out", length=11)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(installed, reason="the onnx extra is installed")
def test_without_the_extra(tmp_path):
    with pytest.raises(
        HeadjaxError, match=r"layout onnx: needs jax2onnx and onnxruntime; pip install 'headjax\[onnx\]'"
    ):
        to_huggingface(model_of(LLAMA), tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()
