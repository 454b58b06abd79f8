"""Layouts: models without some heads, or of other formulations, in their family, or a refusal with a way out."""

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import headjax
from tests import tiny
from tests.closeness import assert_close
from tests.hub.directories import (
    BERT,
    CONFIGS,
    LLAMA,
    RAGGED,
    T5,
    max_difference,
    model_of,
    refused_export,
    replaced,
    rounding,
)
from tests.selected import first

WINDOWED = CONFIGS["qwen3"] | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
ALBERT = BERT | {"model_type": "albert", "architectures": ["AlbertModel"], "embedding_size": 6}
EVEN_T5 = [f"{layer}/{head}" for layer in ("decoder/0", "decoder/1", "cross/0", "cross/1") for head in (0, 2)]


def heads(*layers):
    """All heads of layers."""
    return [f"{layer}/{head}" for layer in layers for head in range(4)]


PRUNED = {
    "nothing": (BERT, [], "native"),
    "ragged": (BERT, RAGGED, "padded"),
    "a layer without heads": (BERT, heads("encoder/1"), "padded"),
    "no heads": (BERT, heads("encoder/0", "encoder/1"), "padded"),
    "one layer again and again": (ALBERT, ["encoder/1/2"], "padded"),
    "equal counts": (LLAMA, ["decoder/0/0", "decoder/0/2", "decoder/1/1", "decoder/1/2"], "native"),
    "groups of a decoder": (LLAMA, ["decoder/0/0", "decoder/1/2", "decoder/1/3"], "padded"),
    "a window without heads": (WINDOWED, heads("decoder/1"), "padded"),
    "layers without positions": (CONFIGS["smollm3"], ["decoder/0/0", "decoder/1/1"], "padded"),
    "two rotary bases": (CONFIGS["gemma3_text"], ["decoder/0/1", "decoder/1/0", "decoder/1/1"], "padded"),
    "the same columns of a bias": (
        T5,
        ["encoder/0/0", "encoder/0/2", *EVEN_T5, "encoder/1/0", "encoder/1/2"],
        "native",
    ),
    "other columns of a bias": (T5, ["encoder/0/0", "encoder/0/2", *EVEN_T5, "encoder/1/0", "encoder/1/1"], "padded"),
}


def test_an_export_with_code_says_how_transformers_loads_it(tmp_path):
    exported = headjax.to_huggingface(headjax.prune(model_of(BERT), RAGGED), tmp_path / "out", "remote")
    assert any("trust_remote_code=True" in note for note in exported.notes), exported.notes


@pytest.mark.parametrize("name", first(4, PRUNED))
def test_a_pruned_model_is_written_in_its_family(name, tmp_path):
    fields, removed, layout = PRUNED[name]
    whole = model_of(fields)
    smaller = headjax.prune(whole, removed)
    exported = headjax.to_huggingface(smaller, tmp_path / "out", family=fields["model_type"])
    assert (exported.layout, exported.notes) == (layout, ())
    assert max_difference(smaller, tmp_path / "out") < rounding(smaller)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    if name in ("equal counts", "groups of a decoder"):  # two key and value heads for four queries, not four
        shape = (written["num_attention_heads"], written["num_key_value_heads"], written["head_dim"])
        assert shape == ((2, 2, 4) if layout == "native" else (4, 2, 4))
    if name == "ragged":  # each head in its own place
        weight = load_file(tmp_path / "out" / "model.safetensors")["bert.encoder.layer.1.attention.output.dense.weight"]
        assert [bool(np.any(weight[:, 2 * head : 2 * head + 2])) for head in range(4)] == [False, True, False, True]
    if layout == "padded":
        again = headjax.from_huggingface(tmp_path / "out").config
        for stack, own in again.stacks().items():
            assert [each.window for each in own.layers] == [each.window for each in whole.config.stacks()[stack].layers]


GROUPED = tiny.grouped(4, 2, 2, projection_bias=True)
HEADS = tiny.multi_head(4, 2)
PAIR = tiny.multi_head(2, 2)


def scaled(name, *scales):
    """Queries of another scale, which goes into their norm: before it, it would be undone."""
    like = model_of(CONFIGS[name]).config.attention
    own = [each.replace(scale=scale) for each, scale in zip(like, scales, strict=True)]
    return replaced(CONFIGS[name], *own, stack="decoder")


FORMULATIONS = {
    "smaller heads of another scale": tiny.multi_head(4, 1, value_dim=2),
    "grouped": GROUPED,
    "unequal groups": GROUPED.replace(num_heads=3, kv_index=(0, 1, 1), head_ids=(0, 2, 3)),
}
AS_HEADS = {
    **{name: ("bert", lambda own=own: replaced(BERT, own, PAIR)) for name, own in FORMULATIONS.items()},
    "a scale of one layer": ("qwen3", lambda: scaled("qwen3", 0.3, None)),
    "a scale of both layers": ("gemma3_text", lambda: scaled("gemma3_text", 0.3, 0.3)),
}


@pytest.mark.parametrize("name", first(4, AS_HEADS))
def test_heads_of_other_shapes_are_padded(name, tmp_path):
    kind, make = AS_HEADS[name]
    model = make()
    assert headjax.to_huggingface(model, tmp_path / "out", family=kind).layout == "padded"
    assert max_difference(model, tmp_path / "out") < rounding(model)


@pytest.mark.parametrize(("name", "expected"), [("llama", "llama"), ("qwen3", "qwen3"), ("mistral", "smollm3")])
def test_biases_that_a_conversion_adds_keep_the_family(name, expected, tmp_path):
    """Calibrated heads may have biases, but not in the output, of which `attention_bias` says the same."""
    headjax.to_huggingface(model_of(CONFIGS[name]), tmp_path / "first", family=name)
    imported = headjax.from_huggingface(tmp_path / "first")
    own = [each.replace(projection_bias=True) for each in imported.config.attention]
    model = replaced(CONFIGS[name], *own, stack="decoder").replace(history=imported.history)
    exported = headjax.to_huggingface(model, tmp_path / "out")
    assert (exported.family, exported.layout, bool(exported.notes)) == (expected, "native", expected != name)
    assert max_difference(model, tmp_path / "out") < rounding(model)


def without(attention, fields=BERT):
    return lambda: replaced(fields, attention, HEADS)


def sliding():
    model = model_of(LLAMA)
    return tiny.model(dataclasses.replace(model.config, window=(4, 4)))


def biased_t5():
    like = model_of(T5).config.attention[0]
    return replaced(T5, like.replace(projection_bias=True), like)


def columns():
    return headjax.prune(model_of(T5), PRUNED["other columns of a bias"][1])


REFUSED = [
    ("bert", "native", lambda: headjax.prune(model_of(BERT), RAGGED), ("num_attention_heads", "layout padded can")),
    (
        "llama",
        "native",
        lambda: headjax.prune(model_of(LLAMA), PRUNED["groups of a decoder"][1]),
        ("layout padded can",),
    ),
    ("t5", "native", columns, ("position bias",)),
    ("t5", "padded", biased_t5, ("query bias",)),
    ("llama", "native", sliding, ("window[0]",)),
    ("bert", "auto", lambda: tiny.model(dataclasses.replace(model_of(BERT).config, pooler="relu")), ("pooler",)),
    ("bert", "auto", without(headjax.Kind(headjax.CompressedAttention, inner=HEADS, rank=3)), ("compressed", "onnx")),
    (
        "bert",
        "padded",
        without(headjax.Kind(headjax.LatentAttention, num_heads=4, rank=3, head_dim=2)),
        ("latent", "layout onnx can"),
    ),
    ("bert", "auto", without(HEADS.replace(rotary=headjax.nn.RotaryInterleaved())), ("rotary_interleaved",)),
    ("bert", "padded", without(tiny.multi_head(4, 4)), ("4 heads of size 4", "onnx")),
]


@pytest.mark.parametrize(("name", "layout", "make", "said"), REFUSED, ids=[f"{n} {m} {s[0]}" for n, m, _, s in REFUSED])
def test_what_a_layout_cannot_say_is_refused_with_a_way_out(name, layout, make, said, tmp_path):
    message = refused_export(make(), tmp_path, layout, family=name)
    assert all(each in message for each in said), message


@pytest.mark.whole
def test_layers_of_two_windows_and_bases_are_gated_scored_and_converted():
    """Keys of a latent are rebuilt, normalised with 1 + weight and turned by the layer's own base, under its window."""
    gemma, tokens = model_of(CONFIGS["gemma3_text"]), {"input_ids": np.arange(11)[None]}
    smaller = headjax.prune(gemma, ["decoder/0/1", "decoder/1/0", "decoder/1/1"])
    off = headjax.gated(gemma, {"decoder/0/1": 0.0, "decoder/1/0": 0.0, "decoder/1/1": 0.0})
    assert_close(smaller(tokens).logits, off(tokens).logits, sums=tiny.SUMS)
    scores = headjax.score_heads(gemma, [{"input_ids": np.arange(80).reshape(2, 40) % 20}], statistics=("distance",))
    places = [headjax.HeadId("decoder", layer, head) for layer in (0, 1) for head in range(4)]
    assert sorted(scores.score("importance")) == places
    assert min(scores.score("importance").values()) > 0.0
    distances = [scores.score("distance")[place] for place in places]
    assert max(distances[:4]) < 3.0 < max(distances[4:])  # a window of 4, and 40 tokens
    converted = headjax.convert(gemma, "latent:rank=8").model
    assert converted.config.window == (4, None)
    assert_close(converted(tokens).logits, gemma(tokens).logits, sums=20 * tiny.SUMS)
