"""A family of one's own, as docs/huggingface.md describes it: a table and name rules, and nothing in the package."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import headjax
from headjax.hub.family import Family, ModelClass
from headjax.hub.fields import Fields
from headjax.hub.rules import affine, norm, one, projection, under
from headjax.hub.table import InexpressibleError, Layers, TrainingOnly, activation, flag, number, record, share, size
from tests.hub.directories import max_difference
from tests.tiny import model as noisy

WIDTH, HEADS = size("width"), size("heads")
TINY = Family(
    model_type="tiny_lm",
    class_prefix="Tiny",
    prefix="model.",
    config=record(
        headjax.DecoderConfig,
        Layers(
            size("depth"),
            {
                "attention": record(headjax.MultiHeadAttention, num_heads=HEADS, head_dim=share(WIDTH, HEADS)),
                "hidden": size("hidden"),
            },
        ),
        width=WIDTH,
        vocab_size=size("vocabulary"),
        max_length=size("positions", 32),
        activation=activation("act", "gelu"),
        norm=record(headjax.nn.LayerNorm, epsilon=number("epsilon", 1e-5)),
        dropout=TrainingOnly(number("dropout", 0.1)),
    ),
    classes=(ModelClass(suffix="ForCausalLM", parts={"tied": flag("tied", True)}, rules=affine("head", "output")),),
    rules=(
        *one("tokens.weight", "embeddings/token"),
        *one("positions.weight", "embeddings/position"),
        *under(
            "blocks.{}.",
            "decoder/{}/",
            (
                *projection("attention.q", "attention/query"),
                *projection("attention.k", "attention/key"),
                *projection("attention.v", "attention/value"),
                *affine("attention.o", "attention/output"),
                *norm("norm_1", "attention_residual/norm"),
                *projection("up", "feed_forward/up"),
                *projection("down", "feed_forward/down"),
                *norm("norm_2", "feed_forward_residual/norm"),
            ),
        ),
        *norm("norm", "decoder/final_norm"),
    ),
    copies=(("head.weight", "model.tokens.weight"),),
    supported={"causal": (True,)},
    head_groups=(("decoder",),),
)
FIELDS = {"model_type": "tiny_lm", "width": 8, "heads": 4, "depth": 2, "hidden": 12, "vocabulary": 20}


def read(folder):
    return headjax.from_huggingface(folder, family=TINY)


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def folder(request, tmp_path):
    """The directory of a model of the family."""
    model = noisy(TINY.read(Fields(FIELDS | {"tied": request.param, "epsilon": 1e-6})))
    headjax.to_huggingface(model, tmp_path / "tiny", family=TINY)
    return tmp_path / "tiny"


def test_a_family_of_ones_own_there_and_back(folder, tmp_path):
    model = read(folder)
    assert model.config.norm.epsilon == 1e-6
    exported = headjax.to_huggingface(model, tmp_path / "again", family=TINY)
    assert (exported.family, exported.layout) == ("tiny_lm", "native")
    again = read(tmp_path / "again")
    assert again.config == model.config
    jax.tree.map(np.testing.assert_array_equal, again.params, model.params)
    assert ("head.weight" in load_file(folder / "model.safetensors")) == (not model.config.tied)


def test_a_family_of_ones_own_is_padded(folder, tmp_path):
    smaller = headjax.prune(read(folder), ["decoder/0/1", "decoder/1/0", "decoder/1/2"])
    assert headjax.to_huggingface(smaller, tmp_path / "out", family=TINY).layout == "padded"
    assert max_difference(smaller, tmp_path / "out", family=TINY) < 1e-5


def test_a_family_of_ones_own_is_strict(folder):
    file = folder / "config.json"
    fields = json.loads(file.read_text())
    for field, value in {"heads": 3, "causal": False, "model_type": "bert", "architectures": ["TinyModel"]}.items():
        file.write_text(json.dumps(fields | {field: value}))
        with pytest.raises(headjax.ConfigError, match=f"^{file}: {field}: "):
            read(folder)
    file.write_text(json.dumps(fields | {"depth": 1}))
    with pytest.raises(headjax.ParameterError, match=r"left over model\.blocks\.1\."):
        read(folder)


def test_an_output_that_the_table_cannot_say(folder, tmp_path):
    config = dataclasses.replace(read(folder).config, output_bias=True)
    with pytest.raises(InexpressibleError, match=r"output_bias"):
        headjax.to_huggingface(noisy(config), tmp_path / "out", family=TINY)
