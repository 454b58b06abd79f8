"""Padding: the same function with zeros in place of missing heads and dimensions."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
from safetensors.numpy import load_file

from headjax.attention import MultiHead
from headjax.heads.pruning import prune
from headjax.hub import to_huggingface
from headjax.hub.checking import max_difference
from headjax.hub.padding import pad_heads
from headjax.models.stack import Stack
from tests.hub.directories import (
    BERT,
    LLAMA,
    T5,
    family,
    model_of,
    refused_export,
    replaced,
    rounding,
)


def test_padded_computes_the_same(ragged, tmp_path):
    exported = to_huggingface(ragged, tmp_path / "out", "padded")
    assert exported.layout == "padded"
    assert max_difference(ragged, tmp_path / "out") < rounding(ragged)
    weight = load_file(tmp_path / "out" / "model.safetensors")["bert.encoder.layer.1.attention.output.dense.weight"]
    assert [bool(np.any(weight[:, 2 * head : 2 * head + 2])) for head in range(4)] == [False, True, False, True]


def test_smaller_heads_are_widened_and_rescaled(tmp_path):
    """Heads of size 1 in a width of 8: four heads of size 2, whose scale differs."""
    model = replaced(BERT, *[MultiHead(num_heads=4, head_dim=1, value_dim=2)] * 2)
    assert to_huggingface(model, tmp_path / "out").layout == "padded"
    assert max_difference(model, tmp_path / "out") < rounding(model)


def test_heads_that_do_not_fit(tmp_path):
    model = replaced(BERT, *[MultiHead(num_heads=4, head_dim=4)] * 2)
    message = refused_export(model, tmp_path)
    assert "4 heads of size 4 fit no bert of width 8, where heads times size is the width" in message
    assert refused_export(model, tmp_path, "padded").endswith("no other layout can either")


def test_a_ragged_llama_keeps_its_groups(tmp_path):
    """Padding finds the groups the heads were in: two key and value heads for four queries, not four."""
    smaller = prune(model_of(LLAMA), ["decoder/0/0", "decoder/1/2", "decoder/1/3"])
    message = refused_export(smaller, tmp_path, "native")
    assert "2 does not divide the num_heads of 3; layout padded can" in message
    assert to_huggingface(smaller, tmp_path / "out").layout == "padded"
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (fields["num_attention_heads"], fields["num_key_value_heads"]) == (4, 2)
    assert max_difference(smaller, tmp_path / "out") < rounding(smaller)
    assert "transformers 4 removed no heads of llama" in refused_export(
        smaller, tmp_path / "x", "pruned_heads", family="llama"
    )


def test_normalised_heads_of_another_scale(tmp_path):
    """The scale goes into the norm's weight, since the norm would undo it before."""
    fields = LLAMA | {"model_type": "qwen3"}
    like = model_of(fields).config.decoder.layers[0].attention
    model = replaced(fields, dataclasses.replace(like, scale=0.3), like, stack="decoder")
    to_huggingface(model, tmp_path / "out", "padded", family="qwen3")
    assert max_difference(model, tmp_path / "out") < rounding(model)


def test_a_bias_without_a_place(tmp_path):
    like = model_of(T5).config.encoder.layers[0].attention
    model = replaced(T5, dataclasses.replace(like, projection_bias=True), like)
    assert "there is no place for its query bias" in refused_export(model, tmp_path, "padded", family="t5")


def test_padding_stacks_the_parameters_once(monkeypatch):
    """To look at the heads is no reason to write all parameters anew: one pass over each stack does."""
    stacked = []
    restack = Stack.restack

    def counted(self, layers, params):
        stacked.append(len(layers))
        return restack(self, layers, params)

    monkeypatch.setattr(Stack, "restack", counted)
    for fields, stacks in ((BERT, 1), (T5, 2)):
        stacked.clear()
        pad_heads(model_of(fields), family(fields["model_type"]))
        assert stacked == [2] * stacks
