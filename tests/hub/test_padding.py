"""Padding: the same function with zeros in place of missing heads, from every formulation that is multi-head."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from headjax.attention import Collaborative, Gated, Grouped, Latent, MultiHead, RotaryInterleaved, Talking, Tucker
from headjax.attention.collaborative import Concatenate
from headjax.conversion import convert
from headjax.core.norms import RMSNorm
from headjax.heads.pruning import prune
from headjax.hub import to_huggingface
from headjax.hub.checking import max_difference
from headjax.hub.padding import pad_heads
from headjax.models.stack import Stack
from tests.hub.directories import (
    BERT,
    LLAMA,
    SIZES,
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
    assert "only onnx can" in refused_export(model, tmp_path, "padded")


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
    assert "query bias" in refused_export(model, tmp_path, "padded", family="t5")


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


@pytest.mark.whole
@pytest.mark.parametrize("target", ["collaborative:shared_dim=6", "latent:rank=5"])
def test_keys_from_components_or_latents_are_exported_as_keys_of_their_own(target, tmp_path):
    """What is saved in the cache is written out: a decoder that others load."""
    source = model_of(LLAMA | {"attention_bias": True})
    model = convert(source, target).model
    assert to_huggingface(model, tmp_path / "out", family="llama").layout == "padded"
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (fields["num_key_value_heads"], fields["rope_theta"]) == (2, 10000.0)
    assert max_difference(model, tmp_path / "out") < rounding(model)


def test_shared_components_of_normalised_keys_are_not_expressible(tmp_path):
    model = convert(model_of(LLAMA | {"model_type": "qwen3"}), "collaborative:shared_dim=6").model
    message = refused_export(model, tmp_path, "padded", family="qwen3")
    assert "shared components of normalised keys are no grouped attention" in message


FORMULATIONS = {
    "grouped": Grouped(num_heads=4, kv_heads=2, head_dim=2, projection_bias=True),
    "unequal groups": Grouped(num_heads=3, kv_heads=2, head_dim=2, kv_index=(0, 1, 1), head_ids=(0, 2, 3)),
    "latent": Latent(num_heads=4, rank=3, head_dim=2),
    "latent queries": Latent(num_heads=4, rank=3, head_dim=2, query_rank=5, projection_bias=True, output_bias=True),
    "tucker": Tucker(num_heads=4, query_rank=3, key_rank=2, projection_bias=True, **SIZES),
    "tucker content": Tucker(num_heads=4, query_rank=3, key_rank=1, content_bias=True, **SIZES),
    "collaborative": Collaborative(num_heads=4, shared_dim=2, projection_bias=True, **SIZES),
    "collaborative content": Collaborative(num_heads=4, shared_dim=1, content_bias=True, **SIZES),
}


@pytest.mark.parametrize("name", FORMULATIONS)
def test_formulations_that_are_multi_head_attention(name, tmp_path):
    model = replaced(BERT, FORMULATIONS[name], MultiHead(num_heads=2, head_dim=2))
    assert to_huggingface(model, tmp_path / "out").layout == "padded"
    assert max_difference(model, tmp_path / "out") < rounding(model)


@pytest.mark.parametrize("biased", [False, True])
def test_heads_of_any_size_fit_a_t5(biased, tmp_path):
    """Its heads have a size of their own, but no biases."""
    attention = Collaborative(
        num_heads=4, shared_dim=6, content_bias=biased, value_bias=False, output_bias=False, **SIZES
    )
    model = replaced(T5, attention, attention)
    if biased:
        assert "query bias" in refused_export(model, tmp_path, "padded", family="t5")
        return
    assert to_huggingface(model, tmp_path / "out", family="t5").layout == "padded"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["d_kv"] == 6
    assert max_difference(model, tmp_path / "out") < rounding(model)


def test_shared_dimensions_that_no_head_reads_are_dropped(tmp_path):
    """A full-rank collaborative layer, each head reading its own block of the shared dimensions, is multi-head."""
    attention = Collaborative(num_heads=4, shared_dim=8, mixing_init=Concatenate(), **SIZES)
    model = replaced(BERT, attention, attention)
    blocks = np.kron(np.eye(4, dtype=np.float32), np.ones((1, 2), np.float32))
    run = model.params["encoder"]["layers_0_1"]
    run["attention"]["mixing"] = np.stack([blocks, 2 * blocks])
    assert to_huggingface(model, tmp_path / "out").layout == "padded"
    assert max_difference(model, tmp_path / "out") < rounding(model)


@pytest.mark.parametrize(
    ("attention", "said"),
    [
        (Talking(num_heads=4, logit_heads=4, softmax_heads=4, head_dim=2), "talking attention is no multi-head"),
        (Gated(inner=MultiHead(num_heads=4, head_dim=2)), "gated_heads attention is no multi-head attention"),
        (Latent(num_heads=4, rank=3, head_dim=2, latent_norm=RMSNorm()), "latent attention with a latent_norm"),
        (MultiHead(num_heads=4, head_dim=2, rotary=RotaryInterleaved()), "attention.rotary is rotary_interleaved"),
        (Collaborative(num_heads=4, shared_dim=5, **SIZES), "4 heads of size 5 fit no bert of width 8"),
    ],
)
def test_formulations_that_are_not(attention, said, tmp_path):
    message = refused_export(replaced(BERT, attention, MultiHead(num_heads=4, head_dim=2)), tmp_path)
    assert said in message
