"""Writing directories and ONNX files: what is kept of a config from before, what is refused, and the check of both."""

import importlib.util
import json

import jax
import numpy as np
import pytest

from headjax.cli import main
from headjax.core.errors import CheckpointError, HeadjaxError
from headjax.core.kind import Kind
from headjax.heads.pruning import prune
from headjax.hub import from_huggingface, to_huggingface
from headjax.hub.checking import example_batch, max_difference
from headjax.nn import CollaborativeAttention, CompressedAttention, LatentAttention
from headjax.tokenizers.learned import byte_tokenizer
from tests import tiny
from tests.closeness import assert_close, close_to, tolerance
from tests.hub.directories import (
    BERT,
    CONFIGS,
    LLAMA,
    RAGGED,
    SIZES,
    model_of,
    refused_export,
    replaced,
    rewrite,
    rounding,
)


def test_fields_that_mean_nothing_here_survive(bert, tmp_path):
    """Names of labels and tokens come back, unless what is written contradicts them."""
    to_huggingface(bert, tmp_path / "one")
    names = {"0": "no", "1": "maybe", "2": "yes"}
    rewrite(tmp_path / "one", id2label=names, sep_token_id=7, dtype="float64", torch_dtype="float64")
    to_huggingface(from_huggingface(tmp_path / "one"), tmp_path / "two")
    fields = json.loads((tmp_path / "two" / "config.json").read_text())
    assert (fields["id2label"], fields["sep_token_id"], fields["dtype"]) == (names, 7, "float32")
    assert "torch_dtype" not in fields


def test_second_names_of_sizes_are_read_by_transformers_and_do_not_survive(tmp_path):
    to_huggingface(model_of(CONFIGS["t5"]), tmp_path / "one", family="t5")
    rewrite(tmp_path / "one", num_attention_heads=4, use_cache=False)
    layers = [f"{stack}/{layer}" for stack in ("encoder", "decoder", "cross") for layer in (0, 1)]
    gone = [f"{layer}/{head}" for layer in layers for head in (0, 1)]
    to_huggingface(prune(from_huggingface(tmp_path / "one"), gone), tmp_path / "two")
    fields = json.loads((tmp_path / "two" / "config.json").read_text())
    assert (fields["num_heads"], fields["use_cache"]) == (2, False)
    assert "num_attention_heads" not in fields


def test_a_decoder_says_which_token_ends_a_text(tmp_path):
    """`transformers` would stop at Llama's own, token 2, and nowhere else."""
    model, tokenizer = model_of(LLAMA | {"vocab_size": 257}), byte_tokenizer()
    for name, each in {"spelled": model.replace(tokenizer=tokenizer), "silent": model}.items():
        to_huggingface(each, tmp_path / name)
    rewrite(tmp_path / "spelled", bos_token_id=3)
    to_huggingface(from_huggingface(tmp_path / "spelled"), tmp_path / "again")
    silent, again = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("silent", "again"))
    assert (silent["bos_token_id"], silent["eos_token_id"]) == (None, None)
    assert (again["bos_token_id"], again["eos_token_id"]) == (3, tokenizer.special_id("eos_token"))


def test_bfloat16_is_written_as_such(bert, tmp_path):
    to_huggingface(bert, tmp_path / "one")
    half = from_huggingface(tmp_path / "one", dtype="bfloat16")
    for layout, model in {"native": half, "padded": prune(half, RAGGED)}.items():
        to_huggingface(model, tmp_path / layout, layout)
        assert json.loads((tmp_path / layout / "config.json").read_text())["dtype"] == "bfloat16"
        assert from_huggingface(tmp_path / layout).params["embeddings"]["token"].dtype == "bfloat16"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert", ["input_ids", "token_type_ids", "attention_mask"]),
        ("distilbert", ["input_ids", "attention_mask"]),
        ("llama", ["input_ids", "attention_mask"]),
    ],
)
def test_the_tokenizer_gives_what_the_model_reads(name, expected, tmp_path):
    """What `transformers` takes for granted depends on its version, and texts of a pair need their types."""
    to_huggingface(model_of(CONFIGS[name]).replace(tokenizer=byte_tokenizer()), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert config["model_input_names"] == expected


def test_bad_requests(bert, ragged, tmp_path):
    for field, fields in (("layout", {"layout": "nativ"}), ("family", {"family": "bret"})):
        with pytest.raises(HeadjaxError, match=f"^{field}: .*did you mean"):
            to_huggingface(bert, tmp_path / "out", **fields)
    assert "family: gpt2 is not" in refused_export(bert, tmp_path, family="gpt2")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(CheckpointError, match="mine: "):
        to_huggingface(bert, tmp_path / "mine")
    ragged.save(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "model"), "--overwrite"]) == 2


def test_a_changed_tensor_is_a_difference(tmp_path):
    model = model_of(BERT)
    for each in (prune(model, RAGGED), model):  # which replaces an earlier one
        to_huggingface(each, tmp_path / "out")
        assert max_difference(each, tmp_path / "out") <= rounding(each)
    name = "classifier.bias"
    rewrite(tmp_path / "out", lambda tensors: tensors.update({name: tensors[name] + 0.5}))
    assert max_difference(model, tmp_path / "out") == close_to(0.5, sums=tiny.SUMS)


installed = importlib.util.find_spec("jax2onnx") is not None


def needs_onnx(test):
    """Skip a test without the extra, whose libraries warn of their own past."""
    skip = pytest.mark.skipif(not installed, reason="needs the onnx extra")
    return pytest.mark.parity(pytest.mark.filterwarnings("default")(skip(test)))


def check_onnx(model, folder, length=6):
    """Another number of examples than the file was made with gives the same outputs as the model."""
    import onnxruntime

    batch = {name: np.concatenate([array, array[:1]]) for name, array in example_batch(model, length).items()}
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
    assert {entry.name for entry in session.get_inputs()} == set(batch)
    hidden, logits = session.run(["last_hidden_state", "logits"], batch)
    expected = model(batch)
    assert_close(hidden, expected.hidden, sums=tiny.SUMS)
    assert_close(logits, expected.logits, sums=tiny.SUMS)


@needs_onnx
@pytest.mark.parametrize("name", ["bert", "llama", "t5", "vit"])
def test_onnx_of_every_architecture(name, tmp_path):
    model = model_of(CONFIGS[name])
    exported = to_huggingface(model, tmp_path / "out", "onnx", length=6)
    assert exported.layout == "onnx"
    assert exported.max_difference < tolerance(tiny.SUMS)
    check_onnx(model, tmp_path / "out")


NAMELESS = {
    "compressed, latent": (
        Kind(CompressedAttention, inner=tiny.multi_head(3), rank=5),
        Kind(LatentAttention, num_heads=2, rank=3, head_dim=2),
    ),
    "collaborative": [Kind(CollaborativeAttention, num_heads=4, shared_dim=5, content_bias=True, **SIZES)] * 2,
}


@needs_onnx
@pytest.mark.parametrize("name", NAMELESS)
def test_onnx_of_models_without_a_name(name, tmp_path):
    model = replaced(BERT, *NAMELESS[name])
    to_huggingface(model, tmp_path / "out", "onnx", length=6)
    check_onnx(model, tmp_path / "out")


@needs_onnx
def test_onnx_of_a_ragged_model_on_the_command_line(tmp_path, capsys):
    model = prune(model_of(BERT), RAGGED)
    model.save(tmp_path / "model")
    words = ["export", str(tmp_path / "model"), str(tmp_path / "out")]
    assert main([*words, "--layout", "onnx", "--length", "6", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["max_difference"] < tolerance(tiny.SUMS)
    check_onnx(model, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "bert"


@needs_onnx
@pytest.mark.parametrize("name", ["bert", "roberta", "mpnet"])
def test_onnx_of_a_ragged_encoder_takes_texts_of_any_length(name, tmp_path):
    model = prune(model_of(CONFIGS[name]), RAGGED)
    assert to_huggingface(model, tmp_path / "out", "onnx").max_difference < 1e-5
    for length in (2, 5, 8):
        check_onnx(model, tmp_path / "out", length)


@needs_onnx
def test_onnx_of_a_length_beyond_the_positions(tmp_path):
    with pytest.raises(HeadjaxError, match=r"11 tokens"):
        to_huggingface(model_of(BERT), tmp_path / "out", "onnx", length=11)
    assert not (tmp_path / "out").exists()


@needs_onnx
def test_onnx_that_fails_names_the_versions(tmp_path, monkeypatch):
    monkeypatch.setattr("jax2onnx.to_onnx", lambda *arguments, **options: jax.core.no_such_name)
    told = r"^layout onnx: jax2onnx [\d.]+ and jax [\d.]+: .*no_such_name.*: pip install '\.\[onnx\]'"
    with pytest.raises(HeadjaxError, match=told):
        to_huggingface(model_of(LLAMA), tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(installed, reason="the onnx extra is installed")
def test_onnx_without_the_extra(tmp_path):
    with pytest.raises(HeadjaxError, match=r"^layout onnx: needs jax2onnx and onnxruntime"):
        to_huggingface(model_of(LLAMA), tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()
