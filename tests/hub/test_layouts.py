"""Layouts: each expresses a model exactly, or is refused with a reason and a way out."""

from __future__ import annotations

import dataclasses
import json

import pytest

from headjax.conversion import convert
from headjax.heads.pruning import prune
from headjax.hub import from_huggingface, to_huggingface
from headjax.hub.checking import example_batch, max_difference
from headjax.models.outputs import Pooler
from tests import tiny
from tests.hub.directories import (
    CONFIGS,
    LLAMA,
    model_of,
    refused_export,
    rounding,
)


def test_pruned_heads_keep_shapes_and_numbers(ragged, tmp_path):
    to_huggingface(ragged, tmp_path / "out", "pruned_heads")
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert fields["num_attention_heads"] == 4
    assert fields["pruned_heads"] == {"0": [1], "1": [0, 2]}
    again = from_huggingface(tmp_path / "out")
    assert [a.ids for a in again.config.attentions()["encoder"]] == [(0, 2, 3), (1, 3)]
    assert max_difference(ragged, tmp_path / "out") == 0.0


def test_native_says_why_not_and_what_can(ragged, tmp_path):
    message = refused_export(ragged, tmp_path, "native")
    assert "3 heads do not divide a width of 8" in message
    assert message.endswith("layout padded can")


def test_auto_takes_the_first_that_can(bert, ragged, tmp_path):
    assert to_huggingface(bert, tmp_path / "one").layout == "native"
    assert to_huggingface(ragged, tmp_path / "two").layout == "padded"


def test_layers_without_heads(bert, tmp_path):
    bare = prune(bert, [f"encoder/1/{head}" for head in range(4)])
    to_huggingface(bare, tmp_path / "one")
    assert max_difference(bare, tmp_path / "one") < rounding(bare)
    assert "has no heads left" in refused_export(bare, tmp_path, "pruned_heads")
    none = prune(bare, [f"encoder/0/{head}" for head in range(4)])
    to_huggingface(none, tmp_path / "two")
    assert max_difference(none, tmp_path / "two") < rounding(none)


def test_equal_counts_of_a_llama_are_native(tmp_path):
    model = model_of(LLAMA)
    smaller = prune(model, ["decoder/0/0", "decoder/0/2", "decoder/1/1", "decoder/1/2"])
    assert to_huggingface(smaller, tmp_path / "out").layout == "native"
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (fields["num_attention_heads"], fields["num_key_value_heads"], fields["head_dim"]) == (2, 2, 4)
    assert max_difference(smaller, tmp_path / "out") < rounding(smaller)


def test_what_a_family_cannot_say(bert, tmp_path):
    model = tiny.model(dataclasses.replace(bert.config, pooler=Pooler(activation="relu")))
    message = refused_export(model, tmp_path, family="bert")
    assert "a bert config.json cannot say that pooler.activation is 'relu' (it would be 'tanh')" in message


@pytest.mark.parametrize(("name", "expected"), [("llama", "llama"), ("qwen3", "qwen3"), ("mistral", "qwen2")])
def test_biases_that_a_conversion_adds_keep_the_family(name, expected, tmp_path):
    """Calibrated grouped heads have biases, but not in the output, of which `attention_bias` says the same."""
    to_huggingface(model_of(CONFIGS[name]), tmp_path / "first", family=name)
    model = from_huggingface(tmp_path / "first")
    batch = example_batch(model)
    converted = convert(model, "grouped:kv_heads=1", batches=[batch]).model
    assert converted.config.attentions()["decoder"][0].projection_bias
    exported = to_huggingface(converted, tmp_path / "out")
    assert (exported.family, exported.layout, bool(exported.notes)) == (expected, "native", expected != name)
    assert max_difference(converted, tmp_path / "out") < rounding(converted)


def test_what_no_config_can_say_has_a_way_out(tmp_path):
    to_huggingface(model_of(LLAMA), tmp_path / "first")
    gated = convert(from_huggingface(tmp_path / "first"), "gated").model
    message = refused_export(gated, tmp_path)
    assert "onnx" in message
    assert "--to grouped" in message
