"""Writing directories and ONNX files: what is kept of a config from before, what is refused, and the check of both."""

import importlib.util
import json

import numpy as np
import pytest

from headjax.cli import main
from headjax.core.errors import CheckpointError, HeadjaxError
from headjax.core.kind import Kind
from headjax.heads.pruning import prune
from headjax.hub import from_huggingface, to_huggingface
from headjax.hub.checking import example_batch, max_difference
from headjax.nn import CollaborativeAttention, CompressedAttention, GroupedAttention, LatentAttention
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


installed = all(map(importlib.util.find_spec, ("onnx", "onnxruntime")))


def needs_onnx(test):
    """Skip a test without the extra, whose libraries warn of their own past."""
    skip = pytest.mark.skipif(not installed, reason="needs the onnx extra")
    return pytest.mark.parity(pytest.mark.filterwarnings("default")(skip(test)))


def session_of(folder, name="model"):
    import onnxruntime

    return onnxruntime.InferenceSession(folder / "onnx" / f"{name}.onnx", providers=["CPUExecutionProvider"])


def as_tokenizers_give(batch):
    return {name: array if array.dtype == np.float32 else array.astype(np.int64) for name, array in batch.items()}


def check_onnx(model, folder, length=6):
    """Another number of examples than the file was made with gives the same outputs as the model."""
    batch = {name: np.concatenate([array, array[:1]]) for name, array in example_batch(model, length).items()}
    session = session_of(folder)
    assert {entry.name for entry in session.get_inputs()} == set(batch)
    expected = model(batch)
    wanted = {"last_hidden_state": expected.hidden, "logits": expected.logits}
    wanted = {name: array for name, array in wanted.items() if array is not None}
    outputs = session.run(list(wanted), as_tokenizers_give(batch))
    for array, ours in zip(outputs, wanted.values(), strict=True):
        assert_close(array, ours, sums=tiny.SUMS)


CROSSED = {"bart", "t5", "mt5", "marian"}


@needs_onnx
@pytest.mark.parametrize("name", sorted(set(CONFIGS) - CROSSED))
def test_onnx_of_every_family_takes_any_number_of_texts_of_any_length(name, tmp_path):
    model = model_of(CONFIGS[name])
    exported = to_huggingface(model, tmp_path / "out", "onnx")
    assert exported.layout == "onnx"
    assert exported.max_difference < tolerance(tiny.SUMS)
    for length in (2, 5, 8):
        check_onnx(model, tmp_path / "out", length)


@needs_onnx
@pytest.mark.parametrize("name", sorted(CROSSED))
def test_onnx_refuses_models_that_it_cannot_write(name, tmp_path):
    with pytest.raises(HeadjaxError, match=r"^layout onnx: .*encoder_decoder"):
        to_huggingface(model_of(CONFIGS[name]), tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


FORMULATIONS = {
    "latent": [Kind(LatentAttention, num_heads=2, rank=3, head_dim=2)] * 2,
    "collaborative": [Kind(CollaborativeAttention, num_heads=4, shared_dim=5, content_bias=True, **SIZES)] * 2,
    "grouped, compressed": (
        Kind(GroupedAttention, num_heads=3, kv_heads=2, kv_index=(0, 1, 1), head_dim=3, value_dim=2),
        Kind(CompressedAttention, inner=tiny.multi_head(3), rank=5),
    ),
}


@needs_onnx
@pytest.mark.parametrize("name", FORMULATIONS)
def test_onnx_of_formulations(name, tmp_path):
    model = replaced(BERT, *FORMULATIONS[name])
    to_huggingface(model, tmp_path / "out", "onnx")
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
@pytest.mark.parametrize("name", ["bert", "mpnet"])
def test_onnx_of_layers_without_heads_and_with_few(name, tmp_path):
    model = prune(model_of(CONFIGS[name]), [*RAGGED, *(f"encoder/1/{head}" for head in (1, 3))])
    to_huggingface(model, tmp_path / "out", "onnx")
    check_onnx(model, tmp_path / "out")


@needs_onnx
@pytest.mark.parametrize("kind", ["int8", "int8:avx2", "int8:arm64"])
def test_quantised_graphs_compute_nearly_the_same_with_every_product_in_int8(kind, tmp_path):
    import onnx

    model = prune(model_of(BERT), RAGGED)
    words = ["export", "--layout", "onnx", "--quantize", kind]
    model.save(tmp_path / "model")
    assert main([*words, str(tmp_path / "model"), str(tmp_path / "out")]) == 0
    (file,) = set((tmp_path / "out" / "onnx").iterdir()) - {tmp_path / "out" / "onnx" / "model.onnx"}
    products = [node.op_type for node in onnx.load(file).graph.node if node.op_type.startswith("MatMul")]
    assert products == ["MatMulInteger"] * (6 * len(model.config.stacks()["encoder"].layers) + 2)
    batch = as_tokenizers_give(example_batch(model, 6))
    hidden = [session_of(tmp_path / "out", name).run(None, batch)[0] for name in ("model", file.stem)]
    assert 0 < np.abs(hidden[0] - hidden[1]).max() < 0.2 * np.abs(hidden[0]).max()


@needs_onnx
def test_onnx_of_a_length_beyond_the_positions(tmp_path):
    with pytest.raises(HeadjaxError, match=r"11 tokens"):
        to_huggingface(model_of(BERT), tmp_path / "out", "onnx", length=11)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("layout, kind", [("native", "int8"), ("onnx", "int4")])
def test_quantize_is_for_onnx_and_knows_its_kinds(layout, kind, tmp_path):
    with pytest.raises(HeadjaxError, match=r"^quantize: "):
        to_huggingface(model_of(BERT), tmp_path / "out", layout, quantize=kind)


@pytest.mark.skipif(installed, reason="the onnx extra is installed")
def test_onnx_without_the_extra(tmp_path):
    with pytest.raises(HeadjaxError, match=r"^layout onnx: needs onnx and onnxruntime"):
        to_huggingface(model_of(LLAMA), tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()
