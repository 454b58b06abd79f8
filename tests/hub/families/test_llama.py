"""Llama and its relatives: rotary positions of both generations of configs, windows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headjax.core.errors import ConfigError, HeadjaxError
from headjax.hub import to_huggingface
from tests.hub.directories import (
    CONFIGS,
    LLAMA,
    model_of,
    refused_import,
)


def test_a_window_limits_the_length():
    """Up to its window, attention over a window is attention over everything."""
    model = model_of(CONFIGS["mistral"])
    model({"input_ids": np.ones((1, 6), np.int32)})
    with pytest.raises(HeadjaxError, match="7 tokens, but the model supports 6"):
        model({"input_ids": np.ones((1, 7), np.int32)})


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_type: 'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor: missing"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor: 0.5 is not supported"),
    ],
)
def test_rotary_positions_that_are_not_supported(tmp_path, rope, said):
    folder = tmp_path / "llama"
    to_huggingface(model_of(LLAMA), folder)
    file = folder / "config.json"
    fields = {name: entry for name, entry in json.loads(file.read_text()).items() if not name.startswith("rope")}
    file.write_text(json.dumps(fields | rope))
    assert said in refused_import(folder, ConfigError)


def test_the_two_generations_of_rotary_fields():
    old = LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = LLAMA | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}
    assert model_of(old).config == model_of(new).config
