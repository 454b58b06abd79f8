"""ONNX files: they compute what the model does, in int8 nearly; commands write and judge them beside the weights."""

import importlib.util
import json

import numpy as np
import pytest

import headjax
from headjax.hub.onnx import OnnxModel
from tests import tiny
from tests.closeness import assert_close, tolerance
from tests.command_line import main
from tests.data.vocabulary import write_lines
from tests.hub.directories import BERT, CONFIGS, LLAMA, RAGGED, SIZES, example_batch, model_of, replaced

installed = all(map(importlib.util.find_spec, ("onnx", "onnxruntime")))
KINDS = {"int8": "model_qint8_avx512_vnni", "int8:avx2": "model_qint8_avx2", "int8:arm64": "model_qint8_arm64"}


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
    exported = headjax.to_huggingface(model, tmp_path / "out", "onnx")
    assert exported.layout == "onnx"
    assert exported.max_difference < tolerance(tiny.SUMS)
    check_onnx(model, tmp_path / "out", 8)


@needs_onnx
@pytest.mark.parametrize("name", sorted(CROSSED))
def test_onnx_refuses_models_that_it_cannot_write(name, tmp_path):
    with pytest.raises(headjax.HeadjaxError, match=r"^layout onnx: .*encoder_decoder"):
        headjax.to_huggingface(model_of(CONFIGS[name]), tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


FORMULATIONS = {
    "latent": [headjax.Kind(headjax.LatentAttention, num_heads=2, rank=3, head_dim=2)] * 2,
    "collaborative": [
        headjax.Kind(headjax.CollaborativeAttention, num_heads=4, shared_dim=5, content_bias=True, **SIZES)
    ]
    * 2,
    "grouped, compressed": (
        headjax.Kind(headjax.GroupedAttention, num_heads=3, kv_heads=2, kv_index=(0, 1, 1), head_dim=3, value_dim=2),
        headjax.Kind(headjax.CompressedAttention, inner=tiny.multi_head(3), rank=5),
    ),
    "interleaved of some dimensions, pairs of each head": (
        tiny.multi_head(2, 6, rotary=headjax.nn.RotaryInterleaved(dim=4)),
        tiny.multi_head(2, 4, rotary=headjax.nn.RotaryHalves(dim=6), frequencies=((0, 2), (1, 2))),
    ),
}


@needs_onnx
@pytest.mark.parametrize("name", FORMULATIONS)
def test_onnx_of_formulations(name, tmp_path):
    model = replaced(BERT, *FORMULATIONS[name])
    headjax.to_huggingface(model, tmp_path / "out", "onnx")
    check_onnx(model, tmp_path / "out")


@needs_onnx
def test_onnx_of_a_ragged_model_on_the_command_line(tmp_path, capsys):
    model = headjax.prune(model_of(BERT), RAGGED)
    model.save(tmp_path / "model")
    words = ["export", str(tmp_path / "model"), str(tmp_path / "out")]
    assert main([*words, "--layout", "onnx", "--length", "6", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["max_difference"] < tolerance(tiny.SUMS)
    check_onnx(model, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "bert"


@needs_onnx
def test_onnx_of_layers_without_heads_and_with_few(tmp_path):
    model = headjax.prune(model_of(CONFIGS["mpnet"]), [*RAGGED, *(f"encoder/1/{head}" for head in (1, 3))])
    headjax.to_huggingface(model, tmp_path / "out", "onnx")
    check_onnx(model, tmp_path / "out")


@needs_onnx
@pytest.mark.parametrize("kind, file", KINDS.items())
def test_every_product_of_a_quantised_graph_is_of_int8_and_embeddings_are(kind, file, tmp_path):
    import onnx

    model = headjax.prune(model_of(BERT), RAGGED)
    headjax.to_huggingface(model, tmp_path / "out", "onnx", quantize=kind)
    proto = onnx.load(tmp_path / "out" / "onnx" / f"{file}.onnx")
    products = [node.op_type for node in proto.graph.node if node.op_type.startswith("MatMul")]
    assert products == ["MatMulInteger"] * (6 * len(model.config.stacks()["encoder"].layers) + 2)
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    codes = [array for array in weights.values() if array.dtype == np.int8]
    assert model.config.vocab_size in {len(array) for array in codes}
    assert max(np.abs(array).max() for array in codes) == (63 if kind == "int8:avx2" else 127)
    batch = as_tokenizers_give(example_batch(model, 6))
    hidden, rounded = (session_of(tmp_path / "out", name).run(None, batch)[0] for name in ("model", file))
    assert 0 < np.abs(hidden - rounded).max() < 0.1 * np.abs(hidden).max()


@needs_onnx
@pytest.mark.parametrize("name", ["qwen3", "modernbert", "nomic_bert"])
def test_tied_logits_gated_units_and_rotations_survive_int8(name):
    model = model_of(CONFIGS[name])
    batch = example_batch(model, 6)
    whole, rounded = OnnxModel(model)(batch).logits, OnnxModel(model, "int8")(batch).logits
    assert 0 < np.abs(whole - rounded).max() < 0.1 * np.abs(whole).max()


@needs_onnx
def test_tokens_with_large_units_do_not_round_those_of_other_tokens():
    model = model_of(BERT)
    params = model.params
    (layers,) = (group["feed_forward"] for group in params["encoder"].values())
    layers["up"] = layers["up"].at[..., 0].multiply(300.0)
    layers["up_bias"] = layers["up_bias"].at[..., 0].set(-150.0)
    layers["down"] = layers["down"].at[..., 0, :].multiply(1.0 / 300.0)
    model, batch = model.replace(params=params), example_batch(model, 8)
    whole, rounded = (np.asarray(graph(batch).hidden) for graph in (OnnxModel(model), OnnxModel(model, "int8")))
    apart = np.abs(whole - rounded).max(axis=-1).ravel() / np.abs(whole).max()
    assert np.median(apart) < 0.015


@needs_onnx
def test_sentences_packed_in_a_row_are_computed_as_if_alone():
    task = headjax.tasks.SentenceSimilarity(pooling=("mean", "cls"))
    model = headjax.with_task(model_of(CONFIGS["mpnet"]), task)
    batch = {
        "input_ids": np.array([[3, 4, 5, 6, 7, 1, 1], [8, 9, 3, 4, 5, 6, 2]]),
        "segment_ids": np.array([[1, 1, 1, 2, 2, 0, 0], [1, 2, 2, 2, 2, 2, 2]]),
        "attention_mask": np.array([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]]),
    }
    ours, theirs = model(batch), OnnxModel(model)(batch)
    shown = batch["attention_mask"].astype(bool)
    assert_close(theirs.hidden[shown], ours.hidden[shown], sums=tiny.SUMS)
    assert_close(theirs.embeddings, ours.embeddings, sums=tiny.SUMS)


@pytest.fixture
def embedder(tmp_path):
    """A directory of sentence-transformers with its tokenizer, and a table of pairs."""
    model = model_of(BERT | {"architectures": ["BertModel"], "vocab_size": 257, "max_position_embeddings": 40})
    model = headjax.with_task(model, headjax.tasks.SentenceSimilarity()).replace(tokenizer=headjax.byte_tokenizer())
    headjax.to_huggingface(model, tmp_path / "model")
    texts = ["one head", "two heads", "none", "a head of ours"]
    rows = [f"{a}\t{b}\t{abs(i - j)}" for i, a in enumerate(texts) for j, b in enumerate(texts)]
    return tmp_path / "model", write_lines(tmp_path / "pairs.tsv", "sentence1\tsentence2\tscore", *rows)


@pytest.mark.skipif(not installed, reason="needs the onnx extra")
@pytest.mark.parametrize(
    "words",
    [
        ("prune", "--remove", "encoder/0/1"),
        ("shrink", "--budget", "parameters=90%", "--calibration", "pairs.tsv"),
    ],
    ids=lambda words: words[0],
)
def test_commands_write_and_judge_graphs_in_int8_beside_the_weights(words, embedder, tmp_path, capsys, monkeypatch):
    model, pairs = embedder
    monkeypatch.chdir(tmp_path)
    words = [words[0], str(model), str(tmp_path / "out"), *words[1:], "--task", str(pairs), "--quantize", "int8"]
    assert main([*words, "--json", "-"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    quantized, file = found["quantized"], tmp_path / "out" / "onnx" / "model_qint8_avx512_vnni.onnx"
    assert (tmp_path / "out" / quantized["file"], quantized["bytes"]) == (file, file.stat().st_size)
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"model.safetensors", "modules.json", "onnx"}
    assert 0.0 < abs(quantized["metrics"]["loss"] - found["metrics"]["loss"]) < 0.05 * found["metrics"]["loss"]
    for times in (
        quantized["milliseconds"],
        found["milliseconds_onnxruntime"],
        found["milliseconds_onnxruntime_before"],
    ):
        assert all(times[size] > 0.0 for size in ("1", "32"))
    assert "ms in onnxruntime, batch of 32" in " ".join(printed.err.split())


REFUSED = [(["--quantize", "int4"], "int4"), (["--quantize", "int8", "--to", "headjax"], "use --to huggingface")]


@needs_onnx
@pytest.mark.parametrize("words, why", REFUSED)
def test_quantize_is_refused_before_the_work(words, why, embedder, tmp_path, capsys):
    assert main(["prune", str(embedder[0]), str(tmp_path / "out"), "--remove", "encoder/0/1", *words]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "--quantize: " in told
    assert why in told
    assert not (tmp_path / "out").exists()


@needs_onnx
def test_quantize_is_refused_before_the_work_where_no_graph_expresses_the_result(tmp_path, capsys):
    headjax.to_huggingface(model_of(CONFIGS["t5"]), tmp_path / "model")
    words = ["prune", str(tmp_path / "model"), str(tmp_path / "out"), "--remove", "encoder/0/1", "--quantize", "int8"]
    assert main(words) == 2
    assert "--quantize: layout onnx: " in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


@needs_onnx
def test_onnx_of_a_length_beyond_the_positions(tmp_path):
    with pytest.raises(headjax.HeadjaxError, match=r"11 tokens"):
        headjax.to_huggingface(model_of(BERT), tmp_path / "out", "onnx", length=11)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("layout, kind", [("maxtext", "int8"), ("onnx", "int4")])
def test_quantize_is_for_onnxruntime_and_knows_its_kinds(layout, kind, tmp_path):
    with pytest.raises(headjax.HeadjaxError, match=r"^quantize: "):
        headjax.to_huggingface(model_of(BERT), tmp_path / "out", layout, quantize=kind)


@pytest.mark.skipif(installed, reason="the onnx extra is installed")
def test_onnx_without_the_extra(tmp_path):
    with pytest.raises(headjax.HeadjaxError, match=r"^layout onnx: needs onnx and onnxruntime"):
        headjax.to_huggingface(model_of(LLAMA), tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()
