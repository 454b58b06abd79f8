"""Reading directories: values in their places, strictly, and nothing written when something is wrong."""

from __future__ import annotations

import json
import os

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from headjax.cli import main
from headjax.core.deferred import Deferred
from headjax.core.errors import CheckpointError, ConfigError, DataError, ParameterError
from headjax.core.paths import path_of
from headjax.hub import from_huggingface, to_huggingface
from headjax.hub.families import FAMILIES
from headjax.mesh.mesh import MeshConfig
from tests.hub.directories import (
    BERT,
    CONFIGS,
    assert_equal,
    family,
    model_of,
    refused_import,
    rewrite,
)


@pytest.mark.parametrize("name", [family.model_type for family in FAMILIES])
def test_every_family_there_and_back(name, tmp_path):
    """The config says everything and every tensor comes back."""
    names = ("lm_head.weight",) if name == "mt5" else ()
    model = model_of(CONFIGS[name], names)
    exported = to_huggingface(model, tmp_path / "out", "native", family=name)
    again = from_huggingface(tmp_path / "out")
    assert again.config == model.config
    assert_equal(again.params, model.params)
    lazy = from_huggingface(tmp_path / "out", lazy=True)
    assert all(isinstance(array, Deferred) for array in jax.tree.leaves(lazy.params))
    assert_equal(lazy.params, model.params)
    assert (lazy.config, len(lazy.history)) == (again.config, 1)
    assert exported.tensors == len(load_file(tmp_path / "out" / "model.safetensors"))
    assert again.history[0]["family"] == name


def test_values_are_in_their_places(made):
    """Query weights are `[outputs, inputs]` there, outputs head by head, and here `[inputs, heads, size]`."""
    model, folder = made
    tensors = load_file(folder / "model.safetensors")
    theirs = tensors["bert.encoder.layer.1.attention.self.query.weight"]
    ours = model.params["encoder"]["layers_0_1"]["attention"]
    np.testing.assert_array_equal(ours["query"][1][:, 2, 1], theirs[2 * 2 + 1])
    np.testing.assert_array_equal(
        ours["output"][0][3, 1], tensors["bert.encoder.layer.0.attention.output.dense.weight"][:, 3 * 2 + 1]
    )


def test_a_mesh_holds_the_same(made):
    mesh = MeshConfig(data=2, fsdp=2, model=2).build()
    _, folder = made
    spread = from_huggingface(folder, mesh=mesh)
    assert_equal(spread.params, made[0].params)
    query = spread.params["encoder"]["layers_0_1"]["attention"]["query"]
    assert query.sharding.shard_shape(query.shape) == (2, 4, 2, 2)


def test_another_type(made):
    model, folder = made
    lazy = from_huggingface(folder, dtype="float16", lazy=True)
    assert {np.asarray(array).dtype for array in jax.tree.leaves(lazy.params)} == {np.dtype(np.float16)}
    with pytest.raises(ConfigError, match=r"^lazy: deferred arrays lie on no mesh$"):
        from_huggingface(folder, mesh=MeshConfig(data=2).build(jax.devices()[:2]), lazy=True)
    half = from_huggingface(folder, dtype="bfloat16")
    assert {str(array.dtype) for array in jax.tree.leaves(half.params)} == {"bfloat16"}
    np.testing.assert_array_equal(
        half.params["embeddings"]["token"], model.params["embeddings"]["token"].astype("bfloat16")
    )


def test_missing_and_left_over_tensors(folder):
    def change(tensors):
        tensors["bert.encoder.layer.2.output.dense.bias"] = tensors.pop("bert.encoder.layer.1.output.dense.bias")

    rewrite(folder, change)
    message = refused_import(folder, ParameterError)
    assert "missing bert.encoder.layer.1.output.dense.bias" in message
    assert "left over bert.encoder.layer.2.output.dense.bias" in message


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hidden_size": 16}, "has shape [20, 8], config.json gives [20, 16]"),
        ({"vocab_size": 2**62}, "word_embeddings.weight has shape [20, 8], config.json gives [4611686018427387904, 8]"),
        ({"vocab_size": 21}, "word_embeddings.weight has shape [20, 8], config.json gives [21, 8]"),
        ({"num_hidden_layers": 1}, "left over bert.encoder.layer.1."),
        ({"num_hidden_layers": 3}, "missing bert.encoder.layer.2."),
        ({"id2label": {"0": "a", "1": "b"}}, "classifier.weight has shape [3, 8], config.json gives [2, 8]"),
    ],
)
def test_a_config_that_contradicts_the_tensors(folder, fields, said):
    rewrite(folder, **fields)
    assert said in refused_import(folder, ParameterError)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "bloom"}, "config.json: model_type: 'bloom' is not a known family; known: bert, "),
        ({"model_type": None}, "model_type: missing"),
        ({"architectures": ["BertForMultipleChoice"]}, "BertForMultipleChoice is not supported; supported: BertModel"),
        ({"hidden_size": None}, "hidden_size: missing"),
        ({"hidden_size": "8"}, "hidden_size: expected a positive integer, got '8'"),
        ({"hidden_size": 0}, "hidden_size: expected a positive integer, got 0"),
        ({"num_attention_heads": 3}, "num_attention_heads: 3 heads do not divide a width of 8"),
        ({"hidden_act": "mish"}, "hidden_act: unknown activation 'mish'"),
        ({"hidden_dropout_prob": 1.5}, "config.json: hidden_dropout_prob: must be at least 0 and below 1, got 1.5"),
        ({"layer_norm_eps": -1.0}, "config.json: layer_norm_eps: must not be negative, got -1.0"),
        ({"layer_norm_eps": float("nan")}, "config.json: layer_norm_eps: expected a finite number, got nan"),
        ({"layer_norm_eps": float("inf")}, "config.json: layer_norm_eps: expected a finite number, got inf"),
        ({"max_position_embeddings": -1}, "max_position_embeddings: expected a positive integer, got -1"),
        ({"architectures": "BertModel"}, "architectures: expected a list of class names, got 'BertModel'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type: 'relative_key' is not supported"),
        ({"is_decoder": True}, "is_decoder: True is not supported"),
        ({"problem_type": "multi_label_classification"}, "problem_type: 'multi_label_classification' is not supported"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: 1,000,000,000 layers, but the files hold"),
        ({"pruned_heads": {"5": [0]}}, "pruned_heads: names layer '5' of 2, counted from 0"),
        ({"pruned_heads": {"0": [4]}}, "pruned_heads: layer 0 has 4 heads, not [4]"),
        ({"pruned_heads": {"0": [[1]]}}, "pruned_heads: layer 0 has 4 heads, not [[1]]"),
        ({"pruned_heads": {"0": [0], "00": [1]}}, "pruned_heads: names layer '00' of 2, counted from 0"),
        ({"pruned_heads": {"1" * 5000: [0]}}, "pruned_heads: names layer '11111111111111111111' of 2, counted from 0"),
        ({"pruned_heads": {"0": [True]}}, "pruned_heads: layer 0 has 4 heads, not [True]"),
        ({"layer_norm_eps": 10**400}, "layer_norm_eps: must be below 2**63 in size, got an int of 1,329 bits"),
        ({"pruned_heads": {"0": [0, 1, 2, 3]}}, "pruned_heads: layer 0 has no heads left"),
    ],
)
def test_a_config_that_is_not_supported(folder, fields, said):
    rewrite(folder, **fields)
    message = refused_import(folder, ConfigError)
    assert "config.json: " in message
    assert said in message


def test_a_pipe_is_no_config(folder):
    """Nobody writes to it, so that reading would wait for ever."""
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    assert "config.json: " in refused_import(folder, DataError)


def test_an_error_quotes_no_whole_field(folder):
    rewrite(folder, pruned_heads={"0": list(range(10**6))})
    assert len(refused_import(folder, ConfigError)) < 2000


def test_a_broken_file_writes_nothing(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    assert "model.safetensors" in refused_import(folder, CheckpointError)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_link_out_of_the_directory_is_refused(folder, tmp_path, name):
    file = folder / name
    (tmp_path / "elsewhere").write_bytes(file.read_bytes() if file.exists() else b"{}")
    file.unlink(missing_ok=True)
    file.symlink_to("../elsewhere")
    assert f"{name}: leads out of the folder" in refused_import(folder, CheckpointError)


def test_a_snapshot_of_hugging_faces_cache_is_read(folder, made, tmp_path):
    """Its files are links to `blobs`, by their hashes."""
    snapshot = tmp_path / "models--somebody--bert" / "snapshots" / "4f1c"
    snapshot.mkdir(parents=True)
    folder.rename(snapshot.parent.parent / "blobs")
    for file in (snapshot.parent.parent / "blobs").iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert_equal(from_huggingface(snapshot).params, made[0].params)


def test_older_files(folder, made):
    """Names as the first conversions gave them, without prefix, with buffers and copies of tied tensors."""

    def change(tensors):
        for name in list(tensors):
            new = name.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma")
            tensors[new.replace("LayerNorm.bias", "LayerNorm.beta")] = tensors.pop(name)
        tensors["embeddings.position_ids"] = np.arange(10)[None]

    rewrite(folder, change)
    assert_equal(from_huggingface(folder).params, made[0].params)


def test_command_line(folder, tmp_path, capsys):
    assert main(["import", str(folder), str(tmp_path / "model"), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["family"] == "bert"
    assert found["tensors"] == len(load_file(folder / "model.safetensors"))
    assert found["heads"] == 8
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "back"), "--check", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["family"], found["layout"], found["max_difference"]) == ("bert", "native", 0.0)
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert {name: array.tobytes() for name, array in after.items()} == {n: a.tobytes() for n, a in before.items()}


def test_families_are_found_by_name():
    assert family("gpt2").class_prefix == "GPT2"
    assert len({family.model_type for family in FAMILIES}) == len(FAMILIES)


def test_importing_onto_what_is_imported_is_refused(folder):
    """A Hugging Face directory is no model directory and is not replaced by one."""
    before = sorted(file.name for file in folder.iterdir())
    assert main(["import", str(folder), str(folder), "--overwrite"]) == 2
    assert sorted(file.name for file in folder.iterdir()) == before


def test_unused_names_do_not_matter(tmp_path):
    """A file of nothing but one tensor names everything that is missing, shortened."""
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    with pytest.raises(ParameterError, match=r"missing bert\.embeddings.* and 35 more; left over x"):
        from_huggingface(tmp_path)


def test_directories_of_a_bucket_are_read_and_written(folder, bucket):
    model = from_huggingface(folder)
    to_huggingface(model, f"{bucket}/hf")
    again = from_huggingface(f"{bucket}/hf")
    jax.tree.map(np.testing.assert_array_equal, again.params, model.params)
    file = path_of(bucket) / "hf" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=rf"^{bucket}/hf/model.safetensors: not a readable safetensors file"):
        from_huggingface(f"{bucket}/hf")
