"""Configs to JSON and back, and the one line a user reads when JSON cannot become a config."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headjax
from headjax.core.fields import options_of, unknown_name
from headjax.core.serialize import dumps, from_data, kind_of, kinds_of, to_data
from headjax.core.tensors import FanIn, Xavier
from tests import tiny
from tests.nn.formulations import FORMULATIONS

CONFIGS = {
    **{name: tiny.decoder_config(tiny.layer(kind)) for name, kind in FORMULATIONS.items()},
    "runs": tiny.decoder_config(tiny.layer(), tiny.layer(), tiny.layer(tiny.collaborative(), hidden=7)),
    "parts": tiny.decoder_config(
        norm=headjax.nn.RMSNorm(0.1), initializer=Xavier(0.5), softcap=2.0, positions="sinusoidal"
    ),
    "kinds": tiny.decoder_config(
        tiny.layer(tiny.collaborative(mixing_init=FanIn(2.0))), norm=headjax.nn.LayerNorm(0.2)
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_survives_json(name):
    assert from_data(headjax.ModelConfig, json.loads(dumps(CONFIGS[name]))) == CONFIGS[name]


def test_equal_neighbours_are_written_once():
    data = to_data(tiny.decoder_config(*[tiny.layer()] * 12, tiny.layer(tiny.collaborative())))
    written = [(entry["repeat"], entry["item"]["kind"]) for entry in data["attention"]]
    assert written == [(12, "multi_head"), (1, "collaborative")]


def test_every_field_is_written_so_that_defaults_may_change():
    written = to_data(tiny.multi_head())
    assert written["kind"] == "multi_head" == kind_of(tiny.multi_head())
    assert written.keys() - {"kind"} == options_of(headjax.MultiHeadAttention).keys()


def test_absent_fields_take_their_defaults_and_layers_may_be_listed_plainly():
    attention = {"kind": "multi_head", "num_heads": 2, "head_dim": 4}
    fields = {"width": 16, "num_layers": 3, "hidden": 8, "vocab_size": 9, "max_length": 4}
    expected = headjax.DecoderConfig(**fields, attention=tiny.multi_head(2))
    for listed in ([attention, {"repeat": 2, "item": attention}], attention):
        assert from_data(headjax.ModelConfig, fields | {"kind": "decoder", "attention": listed}) == expected


def broken(path: str, value: Any) -> dict[str, Any]:
    """A decoder's JSON with one entry replaced (or removed, by `...`), at a path with dots."""
    data = to_data(tiny.decoder_config(tiny.layer()))
    data["attention"] = [data["attention"][0]["item"]]
    *parents, last = path.split(".")
    group: Any = data
    for name in parents:
        group = group[int(name)] if name.isdigit() else group[name]
    if value is ...:
        del group[last]
    else:
        group[last] = value
    return data


@pytest.mark.parametrize(
    "path, value, field",
    [
        *((path, value, path) for path, value in (("widht", 3), ("width", "wide"), ("width", 0), ("width", ...))),
        *((path, value, path) for path, value in (("attention", []), ("hidden", []), ("activation", "gelo"))),
        *(("attention.0.kind", kind, "attention[0].kind") for kind in ("multihead", "layer_norm", [1], ...)),
        ("attention.0.head_ids", [0, "1"], "attention[0].head_ids[1]"),
        ("attention", [{"repeat": "2", "item": {}}], "attention[0].repeat"),
    ],
)
def test_what_cannot_become_a_config_is_one_line_that_names_the_field(path, value, field):
    with pytest.raises(headjax.ConfigError) as error:
        from_data(headjax.ModelConfig, broken(path, value))
    assert str(error.value).startswith(f"config.{field}: ")
    assert "\n" not in str(error.value)


def test_the_nearest_of_the_known_names_is_offered():
    assert unknown_name("kind", "multihead", kinds_of(headjax.Kind)).endswith("did you mean 'multi_head'?")
    assert unknown_name("kind", "layer_norm", kinds_of(headjax.Kind)).endswith(", ".join(kinds_of(headjax.Kind)))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["kind", "width", "decoder", "attention", "x"]), inner, max_size=3)
        ),
    )
)
def test_any_json_is_a_config_or_a_config_error(data):
    with pytest.raises(headjax.ConfigError):
        from_data(headjax.ModelConfig, data)
