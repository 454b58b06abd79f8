"""Reading directories: values in their places, strictly, and nothing written when something is wrong."""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file

import headjax
from tests.buckets import path_of
from tests.closeness import assert_trees_equal
from tests.command_line import main
from tests.hub.directories import CONFIGS, MODEL_TYPES, config_of, family, model_of, refused_import, rewrite


@pytest.mark.parametrize("name", MODEL_TYPES)
def test_every_family_there_and_back(name, tmp_path):
    """The config says everything and every tensor comes back."""
    names = ("lm_head.weight",) if name == "mt5" else ()
    model = model_of(CONFIGS[name], names)
    exported = headjax.to_huggingface(model, tmp_path / "out", "native", family=name)
    again = headjax.from_huggingface(tmp_path / "out")
    assert again.config == model.config
    assert_trees_equal(again.params, model.params)
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
        ours["output"]["kernel"][0][3, 1], tensors["bert.encoder.layer.0.attention.output.dense.weight"][:, 3 * 2 + 1]
    )


def test_a_mesh_holds_the_same(made):
    mesh = headjax.MeshConfig(data=2, fsdp=2, model=2).build()
    _, folder = made
    spread = headjax.from_huggingface(folder, mesh=mesh)
    assert_trees_equal(spread.params, made[0].params)
    query = spread.params["encoder"]["layers_0_1"]["attention"]["query"]
    assert query.sharding.shard_shape(query.shape) == (2, 4, 2, 2)


def test_a_number_beyond_the_type_that_is_asked_for(folder):
    name = "bert.encoder.layer.1.attention.output.dense.bias"
    rewrite(folder, lambda tensors: tensors.update({name: tensors[name] * 0 + 1e6}))
    assert headjax.from_huggingface(folder).num_parameters
    with pytest.raises(headjax.ParameterError, match=rf"model\.safetensors: {name} .*float16"):
        headjax.from_huggingface(folder, dtype="float16")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gpt2", "h.0.attn.bias"),
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("gpt_neox", "gpt_neox.layers.0.attention.masked_bias"),
    ],
)
def test_buffers_of_older_files_are_passed_over(kind, name, tmp_path):
    headjax.to_huggingface(model_of(CONFIGS[kind]), tmp_path / "old", family=kind)
    rewrite(tmp_path / "old", lambda tensors: tensors.update({name: np.zeros(2, np.float32)}))
    assert headjax.from_huggingface(tmp_path / "old").config == model_of(CONFIGS[kind]).config


REFUSED_FIELDS = [
    (headjax.ParameterError, {"hidden_size": 16}, "has shape [20, 8], config.json gives [20, 16]"),
    (headjax.ParameterError, {"vocab_size": 2**62}, "word_embeddings.weight has shape [20, 8]"),
    (headjax.ParameterError, {"num_hidden_layers": 1}, "left over bert.encoder.layer.1."),
    (headjax.ParameterError, {"num_hidden_layers": 3}, "missing bert.encoder.layer.2."),
    (headjax.ParameterError, {"id2label": {"0": "a", "1": "b"}}, "classifier.weight has shape [3, 8]"),
    (headjax.ConfigError, {"model_type": "bloom"}, "headjax_decoder; docs/huggingface.md tells how to add one"),
    (headjax.ConfigError, {"model_type": None}, "config.json: model_type: "),
    (headjax.ConfigError, {"num_hidden_layers": 10**9}, "config.json: num_hidden_layers: "),
    (headjax.ConfigError, {"pruned_heads": {"0": [1]}}, "config.json: pruned_heads: "),
    (headjax.ConfigError, {"quantization_config": {"quant_method": "gptq"}}, "config.json: quantization_config: "),
    (headjax.ConfigError, {"per_layer_config": {"1": {"sliding_window": 4}}}, "per_layer_config: "),
]


@pytest.mark.parametrize(("kind", "fields", "said"), REFUSED_FIELDS, ids=lambda value: str(value)[:40])
def test_a_config_that_is_not_supported_or_contradicts_the_tensors(folder, kind, fields, said):
    rewrite(folder, **fields)
    message = refused_import(folder, kind)
    assert said in message
    assert len(message) < 2000


def text(content):
    return lambda file: file.write_text(content)


BROKEN = [
    *(("config.json", headjax.DataError, text(content), "") for content in ("[]", "{", "[" * 100_000)),
    ("config.json", headjax.CheckpointError, lambda file: None, "missing"),
    ("config.json", headjax.DataError, os.mkfifo, ""),  # nobody writes to it, so that reading would wait for ever
    ("model.safetensors", headjax.CheckpointError, text("{}"), ""),
]


@pytest.mark.parametrize(("name", "kind", "make", "said"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_file_writes_nothing(folder, name, kind, make, said):
    file = folder / name
    file.unlink()
    make(file)
    assert f"{name}: {said}" in refused_import(folder, kind)


def test_older_files(folder, made):
    """Names as the first conversions gave them, without prefix, with buffers and copies of tied tensors."""

    def change(tensors):
        for name in list(tensors):
            new = name.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma")
            tensors[new.replace("LayerNorm.bias", "LayerNorm.beta")] = tensors.pop(name)
        tensors["embeddings.position_ids"] = np.arange(10)[None]

    rewrite(folder, change)
    assert_trees_equal(headjax.from_huggingface(folder).params, made[0].params)


def test_two_names_of_one_tensor_are_one_too_many(folder):
    """Neither is taken in silence."""
    name = "bert.embeddings.LayerNorm.weight"
    rewrite(folder, lambda tensors: tensors.update({name.replace("weight", "gamma"): tensors[name] + 1}))
    assert "left over bert.embeddings.LayerNorm.weight" in refused_import(folder, headjax.ParameterError)


def test_command_line(folder, tmp_path, capsys):
    assert main(["import", str(folder), str(tmp_path / "model"), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["family"], found["heads"]) == ("bert", 8)
    assert found["tensors"] == len(load_file(folder / "model.safetensors"))
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "back"), "--check", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["family"], found["layout"], found["max_difference"]) == ("bert", "native", 0.0)
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert {name: array.tobytes() for name, array in after.items()} == {n: a.tobytes() for n, a in before.items()}
    # A Hugging Face directory is no model directory and is not replaced by one.
    before = sorted(file.name for file in folder.iterdir())
    assert main(["import", str(folder), str(folder), "--overwrite"]) == 2
    assert sorted(file.name for file in folder.iterdir()) == before


def test_directories_of_a_bucket_are_read_and_written(folder, bucket):
    model = headjax.from_huggingface(folder)
    headjax.to_huggingface(model, f"{bucket}/hf")
    again = headjax.from_huggingface(f"{bucket}/hf")
    assert_trees_equal(again.params, model.params)
    file = path_of(bucket) / "hf" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(headjax.CheckpointError, match=rf"^{bucket}/hf/model.safetensors: "):
        headjax.from_huggingface(f"{bucket}/hf")


CLASSES = [
    ("bart", {"architectures": ["BartForConditionalGeneration"]}, {"final_logits_bias", "model.shared.weight"}, ()),
    ("bart", {"architectures": ["BartModel"]}, {"shared.weight"}, {"final_logits_bias"}),
    ("roberta", {"architectures": ["RobertaForSequenceClassification"]}, {"classifier.dense.weight"}, ()),
    ("roberta", {"architectures": ["RobertaModel"]}, (), {"classifier.dense.weight", "pooler.dense.weight"}),
    ("marian", {"share_encoder_decoder_embeddings": True}, {"model.shared.weight"}, ()),
    ("marian", {"decoder_vocab_size": 12}, {"model.encoder.embed_tokens.weight"}, {"model.shared.weight"}),
]


@pytest.mark.parametrize(("kind", "fields", "there", "absent"), CLASSES)
def test_classes_have_tensors_of_their_own(kind, fields, there, absent, tmp_path):
    model = model_of(CONFIGS[kind] | fields)
    headjax.to_huggingface(model, tmp_path / "out", family=kind)
    names = set(load_file(tmp_path / "out" / "model.safetensors"))
    assert names.issuperset(there)
    assert names.isdisjoint(absent)
    assert headjax.from_huggingface(tmp_path / "out").config == model.config


def test_weights_of_the_base_model_under_the_name_of_another_class(tmp_path):
    """As in directories of sentence-transformers; with a part of the output it is that class, which lacks the rest."""
    base = model_of(CONFIGS["mpnet"] | {"architectures": ["MPNetModel"]})
    headjax.to_huggingface(base, tmp_path / "out", family="mpnet")
    rewrite(tmp_path / "out", architectures=["MPNetForMaskedLM"])
    again = headjax.from_huggingface(tmp_path / "out")
    assert (again.config, again.config.task) == (base.config, headjax.tasks.NoTask())
    rewrite(tmp_path / "out", lambda tensors: tensors.update({"lm_head.bias": np.zeros(20, np.float32)}))
    with pytest.raises(
        headjax.ParameterError, match=r"not the tensors of MPNetForMaskedLM: missing lm_head.dense.bias"
    ):
        headjax.from_huggingface(tmp_path / "out")


TIED = [
    (name, {"share_encoder_decoder_embeddings": shared} if name == "marian" else {}, copy)
    for name in ("bert", "distilbert", "roberta", "albert", "llama", "bart", "marian", "t5", "mt5")
    for shared in ((True, False) if name == "marian" else (True,))
    for copy, _ in family(name).repeated(config_of(CONFIGS[name] | {"share_encoder_decoder_embeddings": shared}))
    if (name, copy) != ("mt5", "lm_head.weight")  # its presence alone says that mT5's output is not tied
]


@pytest.mark.parametrize(("kind", "fields", "copy"), TIED, ids=lambda value: str(value)[:40])
def test_a_tied_tensor_is_read_under_either_name_or_both(kind, fields, copy, tmp_path):
    """Some files hold the output's weights beside the embeddings or instead of them."""
    folder, model = tmp_path / kind, model_of(CONFIGS[kind] | {"tie_word_embeddings": True} | fields)
    headjax.to_huggingface(model, folder, family=kind)
    tensors = load_file(folder / "model.safetensors")
    pairs = family(kind).repeated(model.config)
    original = next((name for other, name in pairs if other == copy and name in tensors), None)
    if original is None or copy in tensors:
        pytest.skip("the two are not tied in this model")
    rewrite(folder, lambda tensors: tensors.update({copy: tensors[original]}))
    assert_trees_equal(headjax.from_huggingface(folder).params, model.params)
    rewrite(folder, lambda tensors: tensors.pop(original))
    assert_trees_equal(headjax.from_huggingface(folder).params, model.params)
    rewrite(folder, lambda tensors: tensors.update({original: tensors[copy] + 1}))
    assert f"{copy} differs from {original}" in refused_import(folder, headjax.ParameterError)
