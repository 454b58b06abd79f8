"""The model as a value: exact round trips through strict model directories, and its short text."""

import json
import shutil
from copy import deepcopy

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh

import headjax
from headjax.core.errors import DamagedError
from headjax.core.kind import own_copy
from headjax.core.serialize import kind_of
from headjax.models.directory import ModelFolder
from headjax.storage.directories import write_checksums
from headjax.storage.paths import copy_file, files_below
from tests import tiny
from tests.buckets import path_of
from tests.closeness import assert_close, assert_trees_equal
from tests.hub.directories import BERT, LLAMA, T5, model_of
from tests.models.mixed import MODELS


def small_config(hidden=8):
    attentions = (
        tiny.multi_head(2, 3, head_ids=(1, 5)),
        headjax.Kind(headjax.CollaborativeAttention, num_heads=2, shared_dim=4, value_dim=2, head_dim=3),
        tiny.no_heads(),
    )
    return headjax.DecoderConfig(
        width=4, num_layers=3, attention=attentions, hidden=hidden, residual="post_norm", vocab_size=6, max_length=5
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    config = small_config()
    model = headjax.Model(config, config.initialize(jax.random.key(0)), history=({"action": "made", "of": [1, 2]},))
    path = tmp_path_factory.mktemp("models") / "model"
    model.save(path)
    return model, path


@pytest.fixture
def copy(saved, tmp_path):
    shutil.copytree(saved[1], tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("recorded", [True, False])
def test_round_trip_is_exact(recorded, saved, copy):
    """Also of a directory that was changed on purpose, whose record was deleted."""
    model, _ = saved
    if not recorded:
        (copy / "checksums.json").unlink()
    loaded = headjax.load(copy)
    assert loaded.config == model.config
    assert loaded.config.attentions()["decoder"][0].ids == (1, 5)
    assert loaded.history == model.history
    assert_trees_equal(loaded.params, model.params)


def test_loads_onto_a_mesh_also_without_the_axes_of_the_rules(saved):
    model, path = saved
    loaded = headjax.load(path, mesh=headjax.MeshConfig(data=2, fsdp=2, model=2).build())
    query = loaded.params["decoder"]["layers_0_0"]["attention"]["query"]
    assert tuple(query.sharding.spec) == (None, "fsdp", "model")
    np.testing.assert_array_equal(query, model.params["decoder"]["layers_0_0"]["attention"]["query"])
    loaded = headjax.load(path, mesh=Mesh(np.array(jax.devices()), ("data",)))
    tokens = {"input_ids": np.arange(3)[None] % model.config.vocab_size}
    assert all(array.sharding.is_fully_replicated for array in jax.tree.leaves(loaded.params))
    assert_close(loaded(tokens).logits, model(tokens).logits, sums=tiny.SUMS)


def write_config(path, text):
    """Write another config into a model directory, as if the model had been saved with it."""
    (path / "config.json").write_text(text)
    write_checksums(path)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"residual": "pre_norm"}, headjax.ParameterError, "^decoder/final_norm/scale: "),  # missing
        ({"positions": "none"}, headjax.ParameterError, "^embeddings/position: "),  # extra
        ({"max_length": 7}, headjax.ParameterError, "^embeddings/position: "),
        ({"widht": 3}, headjax.ConfigError, r"config\.json\.widht: "),
    ],
)
def test_a_config_that_is_not_that_of_the_arrays_names_what_differs(change, error, message, copy):
    data = json.loads((copy / "config.json").read_text())
    assert data["headjax"] == headjax.__version__
    data["model"].update(change)
    write_config(copy, json.dumps(data))
    with pytest.raises(error, match=message):
        headjax.load(copy)


@pytest.mark.parametrize(("text", "message"), [('{"model": ', r"config\.json: "), ("{}", "not a headjax config")])
def test_a_file_that_is_no_config_is_one_line(text, message, copy):
    write_config(copy, text)
    with pytest.raises(headjax.CheckpointError, match=message):
        headjax.load(copy)


def test_a_run_is_taken_for_no_model_but_says_where_its_model_is(tmp_path, copy):
    with pytest.raises(headjax.CheckpointError, match=r"not a model directory \(it has no config\.json\)$"):
        headjax.load(copy / "nowhere")
    shutil.copytree(copy, tmp_path / "run" / "model")
    with pytest.raises(headjax.CheckpointError, match=r"config\.json\); do you mean \S+run/model\?$"):
        headjax.load(tmp_path / "run")


def test_saving_replaces_a_model_but_nothing_else(saved, copy, tmp_path):
    model, _ = saved
    model.replace(history=()).save(copy)
    assert headjax.load(copy).history == ()
    # Hugging Face directories hold a config.json too.
    for name, text in (("chapter.txt", "years of work"), ("config.json", '{"model_type": "bert"}')):
        other = tmp_path / name.partition(".")[0]
        other.mkdir()
        (other / name).write_text(text)
        with pytest.raises(headjax.CheckpointError, match=f"{other.name}: "):
            model.save(other)
        assert [file.name for file in other.iterdir()] == [name]
        assert (other / name).read_text() == text


def test_a_failed_save_leaves_nothing(saved, tmp_path):
    model, _ = saved

    class Broken:
        def save(self, path):
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        model.replace(tokenizer=Broken()).save(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(headjax.ParameterError):
        headjax.Model(small_config(hidden=16), model.params).save(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fields", [BERT, LLAMA, T5])
def test_a_model_prints_as_a_few_lines(fields):
    model = model_of(fields)
    text = repr(model)
    assert str(model) == text
    assert text.count("\n") <= 4
    assert kind_of(model.config) in text
    assert f"width {model.config.width}" in text
    assert f"{model.num_parameters:,} (float32)" in text
    assert "Array" not in text
    assert ("decoder 8 in 2 layers" in text) is (fields is not BERT)


def test_what_was_done_to_it_is_said():
    text = repr(headjax.prune(model_of(BERT), [headjax.HeadId("encoder", 0, 1)]))
    assert "encoder 7 in 2 layers" in text
    assert "task classification of 3 classes" in text
    assert text.endswith("history: prune")
    assert "none loaded" in repr(headjax.Model(model_of(BERT).config, {}))


def test_a_bucket_holds_the_same_model_saved_or_copied_there(saved, bucket):
    model, path = saved
    saved_there, copied = f"{bucket}/saved", f"{bucket}/copied"
    for _ in range(2):
        model.save(saved_there)
    for name in files_below(path):
        copy_file(path / name, path_of(copied) / name)
    mesh = headjax.MeshConfig(data=2, fsdp=2, model=2).build()
    for loaded in (headjax.load(saved_there), headjax.load(saved_there, mesh=mesh), headjax.load(copied)):
        assert loaded.config == ModelFolder(saved_there).config == model.config
        assert loaded.history == model.history
        assert_trees_equal(loaded.params, model.params)
    config = path_of(saved_there) / "config.json"
    config.write_text(config.read_text().replace("width", "Width"))
    with pytest.raises(DamagedError, match=f"^{saved_there}/config.json: damaged"):
        headjax.load(saved_there)
    with pytest.raises(
        headjax.CheckpointError, match=rf"^{bucket}/none: not a model directory \(it has no config.json\)"
    ):
        headjax.load(f"{bucket}/none")


def test_a_model_can_be_drawn_from_rngs():
    config = tiny.decoder_config(tiny.layer(tiny.multi_head(4)))
    drawn = headjax.Model(config, rngs=nnx.Rngs(3))
    assert_trees_equal(drawn.params, config.initialize(nnx.Rngs(3).params()))
    with pytest.raises(headjax.HeadjaxError, match=r"^rngs: "):
        headjax.Model(config)


FAMILIES = {
    "decoder": headjax.Decoder,
    "encoder": headjax.Encoder,
    "encoder_decoder": headjax.EncoderDecoder,
    "vision": headjax.Vision,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_is_of_its_family(name):
    """Made by the family's class or by `Model`, and so are its copies; what has no arrays has no parts."""
    config, family = MODELS[name]([tiny.multi_head(4)]), FAMILIES[name]
    model = headjax.Model(config, rngs=nnx.Rngs(0))
    assert_trees_equal(model.params, family(config, rngs=nnx.Rngs(0)).params)
    for one in (model, nnx.clone(model), deepcopy(model), model.with_entry("read"), headjax.Model(config, {})):
        assert type(one) is family
        assert one.config == config
    assert headjax.Model(config, {}).params == {}


def test_a_model_of_other_parts_says_which_one_its_config_does_not_describe(tmp_path):
    model = tiny.model(tiny.decoder_config(tiny.layer(tiny.multi_head(4)), tiny.layer(tiny.multi_head(4))))
    edited = own_copy(model)
    made = nnx.vmap(lambda rngs: headjax.GroupedAttention(tiny.WIDTH, num_heads=4, kv_heads=2, rngs=rngs))
    edited.decoder.layers_0_1.attention = nnx.split_rngs(splits=2)(made)(nnx.Rngs(0))
    assert np.abs(edited(tiny.tokens()).logits - model(tiny.tokens()).logits).max() > 1e-3
    assert "heads: decoder 8 in 2 layers" in repr(edited)
    for write in (lambda: edited.save(tmp_path / "model"), lambda: headjax.prune(edited, ["decoder/0/0"])):
        with pytest.raises(headjax.HeadjaxError, match=r"^decoder/layers_0_1/attention: is a GroupedAttention, where"):
            write()
    assert not (tmp_path / "model").exists()
    gated = headjax.gated(model, {"decoder/0/1": 0.0})
    with pytest.raises(headjax.HeadjaxError, match=r"^decoder/layers_0_1/attention: has gates"):
        gated.save(tmp_path / "model")
    assert "heads: decoder 8" in repr(gated)


def test_a_folder_that_could_not_be_read_again_is_refused(tmp_path):
    with pytest.raises(headjax.HeadjaxError, match="no backslash in its path"):
        tiny.model(tiny.decoder_config()).save(tmp_path / "a\\b")
    assert not list(tmp_path.iterdir())
