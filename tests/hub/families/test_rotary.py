"""Rotary positions of both generations of configs, and their scalings."""

from __future__ import annotations

import json
import math

import pytest

from headjax.attention.rotary import LinearScaling, Llama3Scaling, RotaryHalves, YarnScaling
from headjax.core.errors import ConfigError
from headjax.hub import to_huggingface
from headjax.hub.fields import Fields
from tests.hub.directories import LLAMA, family, model_of, refused_import

BARE = {name: value for name, value in LLAMA.items() if name != "max_position_embeddings"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def config(**fields):
    return family("llama").read(Fields(BARE | fields))


def rotary(**fields):
    return config(**fields).decoder.layers[0].attention.rotary


def reach(**fields):
    return config(**fields).embeddings.positions.max_length


def test_the_two_generations_of_rotary_fields():
    old = rotary(rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0})
    new = rotary(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5})
    assert old == new == RotaryHalves(base=5e5, scaling=LinearScaling(2.0))


@pytest.mark.parametrize(
    ("parameters", "scaling"),
    [
        (YARN, YarnScaling(4.0, 16)),
        (YARN | {"attention_factor": 1.5}, YarnScaling(4.0, 16, attention_factor=1.5)),
        (
            YARN | {"beta_fast": 8, "beta_slow": 2, "truncate": False},
            YarnScaling(4.0, 16, fast=8.0, slow=2.0, whole_pairs=False),
        ),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
            | {"original_max_position_embeddings": 32},
            Llama3Scaling(8.0, 1.0, 4.0, 32),
        ),
    ],
    ids=str,
)
def test_scalings_are_read_and_written(parameters, scaling):
    read = config(rope_scaling=parameters)
    assert read.decoder.layers[0].attention.rotary == RotaryHalves(scaling=scaling)
    written = family("llama").write(read)
    assert written["rope_parameters"] == written["rope_scaling"] | {"rope_theta": 10000.0}
    assert family("llama").read(Fields(written)) == read


def test_yarns_factors():
    """As `transformers` completes them: by the lengths of the config, and by the quotient of two magnitudes."""
    scaled = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 16}
    assert rotary(max_position_embeddings=64, rope_scaling=scaled).scaling == YarnScaling(4.0, 16)
    assert (
        rotary(max_position_embeddings=64, rope_scaling={"type": "yarn", "factor": 2.0}).scaling.original_length == 64
    )
    both = rotary(rope_scaling=YARN | {"mscale": 0.5, "mscale_all_dim": 1.0}).scaling
    assert both.attention_factor == pytest.approx((1 + 0.05 * math.log(4)) / (1 + 0.1 * math.log(4)))
    assert rotary(rope_scaling=YARN | {"mscale": 0.5}).scaling == YarnScaling(4.0, 16)


def test_yarn_reaches_its_factor_times_the_original_length():
    assert reach() is None
    assert reach(max_position_embeddings=16) == 16
    assert reach(max_position_embeddings=16, rope_scaling=YARN) == 64
    assert reach(max_position_embeddings=80, rope_scaling=YARN) == 80
    assert reach(max_position_embeddings=16, rope_scaling={"rope_type": "linear", "factor": 2.0}) == 16


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        (
            {"rope_scaling": {"type": "longrope", "factor": 2.0}},
            "rope_scaling: rope_type: 'longrope' is not supported; supported: 'default', 'linear', 'llama3', 'yarn'",
        ),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type: 'dynamic' is not supported"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters: factor: missing"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor: 0.5 is not supported"),
        ({"rope_scaling": YARN | {"beta_fast": 1.0}}, "rope_scaling: beta_slow: must be below fast, got 1.0 and 1.0"),
        (
            {"rope_scaling": {"rope_type": "yarn"}, "max_position_embeddings": None},
            "config.json: rope_scaling: factor: missing",
        ),
        (
            {"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2.0}},
            "rope_scaling: type: 'yarn' contradicts the rope_type 'linear'",
        ),
        (
            {"rope_scaling": YARN, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
            "config.json: rope_scaling: contradicts rope_parameters",
        ),
        (
            {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
            "config.json: rope_theta: 500000.0 contradicts the 10000.0 in rope_parameters",
        ),
    ],
)
def test_rotary_positions_that_are_not_supported(tmp_path, rope, said):
    folder = tmp_path / "llama"
    to_huggingface(model_of(LLAMA), folder)
    file = folder / "config.json"
    fields = {name: entry for name, entry in json.loads(file.read_text()).items() if not name.startswith("rope")}
    file.write_text(json.dumps(fields | rope))
    assert said in refused_import(folder, ConfigError)
