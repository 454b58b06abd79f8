"""Llama and its relatives: windows, layers of several types, layers without positions."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from headjax.attention.multi_head import Grouped
from headjax.core.errors import ConfigError, DataError
from headjax.heads.pruning import prune
from headjax.hub import from_huggingface, to_huggingface
from headjax.hub.fields import Fields
from tests import tiny
from tests.closeness import assert_close
from tests.hub.directories import CONFIGS, LLAMA, family, model_of, refused_export, refused_import, rounding

SLIDING, FULL = "sliding_attention", "full_attention"
WINDOWED = LLAMA | {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
SMOLLM3 = CONFIGS["smollm3"]


def windows(fields):
    return [layer.window for layer in model_of(fields).config.decoder.layers]


def read(fields):
    return family(fields["model_type"]).read(Fields(fields))


def test_a_window_is_a_mask_and_limits_no_length():
    model = model_of(CONFIGS["mistral"])
    assert windows(CONFIGS["mistral"]) == [6, 6]
    whole = model_of(CONFIGS["mistral"] | {"sliding_window": None})
    tokens = {"input_ids": np.arange(14)[None] % 20}
    logits, others = (np.asarray(each(tokens).logits) for each in (model, whole))
    assert_close(logits[:, :6], others[:, :6], sums=tiny.SUMS)
    assert np.abs(logits[:, 6:] - others[:, 6:]).max(axis=-1).min() > 1e-3


def test_windows_of_layers():
    assert windows(WINDOWED) == [None, 3]
    assert windows(WINDOWED | {"use_sliding_window": False}) == [None, None]
    assert windows(WINDOWED | {"layer_types": [SLIDING, FULL]}) == [3, None]
    assert windows(LLAMA | {"model_type": "mistral"}) == [4096] * 2
    assert windows(WINDOWED | {"model_type": "qwen2", "sliding_window": None}) == [None, None]


def test_layers_without_positions():
    assert [layer.attention.rotary is None for layer in read(SMOLLM3).decoder.layers] == [False, True]
    every = SMOLLM3 | {"no_rope_layers": None, "no_rope_layer_interval": 1}
    assert [layer.attention.rotary for layer in read(every).decoder.layers] == [None, None]
    sliding = SMOLLM3 | {"use_sliding_window": True, "sliding_window": 4}
    assert [layer.window for layer in read(sliding).decoder.layers] == [None, 4]


@pytest.mark.parametrize(
    "fields",
    [
        WINDOWED,
        WINDOWED | {"layer_types": [SLIDING, FULL]},
        WINDOWED | {"use_sliding_window": False, "attention_bias": True, "head_dim": 6},
        SMOLLM3 | {"use_sliding_window": True, "sliding_window": 4},
        SMOLLM3 | {"no_rope_layers": [0, 0]},
    ],
    ids=str,
)
def test_layers_that_differ_are_written_and_read_again(fields):
    config = model_of(fields).config
    assert read(family(fields["model_type"]).write(config)) == config


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (WINDOWED | {"layer_types": [FULL]}, "layer_types: expected a list of 2 types, one per layer, got ['full_att"),
        (
            WINDOWED | {"layer_types": [FULL, "chunked_attention"]},
            "layer_types: 'chunked_attention' is not supported; supported: 'full_attention', 'sliding_attention'",
        ),
        (
            WINDOWED | {"use_sliding_window": False, "layer_types": [FULL, SLIDING]},
            "layer_types: layer 1 is 'sliding_attention', but use_sliding_window is false",
        ),
        (
            WINDOWED | {"sliding_window": None, "layer_types": [SLIDING, FULL]},
            "layer_types: layer 0 is 'sliding_attention', but sliding_window is null",
        ),
        (CONFIGS["mistral"] | {"sliding_window": 0}, "sliding_window: expected a positive integer, got 0"),
        (CONFIGS["mistral"] | {"layer_types": [FULL] * 2}, "layer_types: ['full_attention', 'full_attention'] is not"),
        (SMOLLM3 | {"no_rope_layers": [1]}, "no_rope_layers: expected a list of 2 numbers, 1 for rotary positions"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_contradictions_are_one_line(fields, said):
    with pytest.raises(ConfigError) as caught:
        read(fields)
    assert str(caught.value).startswith(f"config.json: {said}")
    assert "\n" not in str(caught.value)


def test_a_sequence_beyond_the_models_positions():
    model = model_of(LLAMA | {"max_position_embeddings": 6})
    model({"input_ids": np.ones((1, 6), np.int32)})
    with pytest.raises(DataError, match="7 tokens, but the model supports 6"):
        model({"input_ids": np.ones((1, 7), np.int32)})
    with pytest.raises(DataError, match=r"position_ids: 6 at \[0, 1\], but the model has 6 positions"):
        model({"input_ids": np.ones((1, 2), np.int32), "position_ids": np.asarray([[0, 6]])})
    assert family("llama").write(model.config)["max_position_embeddings"] == 6


def test_heads_removed_from_layers_of_several_types_are_padded_back(tmp_path):
    """The layer that lost all its heads keeps the type that its window says."""
    tokens = {"input_ids": np.arange(9)[None]}
    for fields, removed in (
        (WINDOWED, [f"decoder/1/{head}" for head in range(4)]),
        (SMOLLM3, ["decoder/0/0", "decoder/1/1"]),
    ):
        smaller = prune(model_of(fields), removed)
        exported = to_huggingface(smaller, tmp_path / fields["model_type"])
        assert (exported.layout, exported.family) == ("padded", fields["model_type"])
        again = from_huggingface(tmp_path / fields["model_type"])
        assert [layer.window for layer in again.config.decoder.layers] == windows(fields)
        np.testing.assert_allclose(again(tokens).logits, smaller(tokens).logits, atol=rounding(smaller))


def test_llama_cannot_say_that_a_layer_slides(tmp_path):
    model = model_of(LLAMA)
    layers = [dataclasses.replace(layer, window=4) for layer in model.config.decoder.layers]
    config = dataclasses.replace(model.config, decoder=dataclasses.replace(model.config.decoder, layers=tuple(layers)))
    said = refused_export(model.replace(config=config), tmp_path, "native", family="llama")
    assert "decoder.layers[0].window is 4" in said


def test_an_import_names_the_file_and_the_field(tmp_path):
    folder = tmp_path / "qwen3"
    to_huggingface(model_of(WINDOWED), folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"use_sliding_window": False}))
    assert "config.json: layer_types: layer 1 is 'sliding_attention'" in refused_import(folder, ConfigError)


def test_qwen3s_heads_have_a_size_of_their_own():
    attention = (
        read({name: value for name, value in WINDOWED.items() if name != "head_dim"}).decoder.layers[0].attention
    )
    assert isinstance(attention, Grouped)
    assert attention.head_dim == 128
