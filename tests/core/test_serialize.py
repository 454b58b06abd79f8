"""Configs to JSON and back, and the one line a user reads when JSON cannot become a config."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headjax.attention import Attention, MultiHead, NoHeads
from headjax.core.errors import ConfigError
from headjax.core.norms import LayerNorm, RMSNorm
from headjax.core.serialize import dumps, from_data, kind, kind_of, kinds_of, to_data, unknown_name
from headjax.core.tensors import Constant, FanIn, Initializer, Normal, TruncatedNormal, Xavier, Zeros
from headjax.models import DecoderModel, ModelConfig
from headjax.models.embeddings import Embeddings, Learned, NoPositions, Sinusoidal
from headjax.models.layer import Layer
from headjax.models.outputs import Tied, Untied
from headjax.models.residuals import PostNorm, PreNorm
from headjax.models.stack import Stack
from headjax.models.sublayers import Dense, GatedDense
from tests import tiny


@dataclasses.dataclass(frozen=True)
class Plain:
    """Every kind of field there is."""

    number: int
    rate: float = 0.5
    flag: bool = False
    name: str = "x"
    maybe: int | None = None
    choice: Literal["a", "b"] = "a"
    pair: tuple[int, float] = (1, 2.0)
    numbers: tuple[int, ...] = ()
    table: dict[str, float] = dataclasses.field(default_factory=dict)
    anything: Any = None
    initializer: Initializer = Zeros()


sizes = st.integers(1, 64)
rates = st.floats(0.0, 0.99)
initializers = st.one_of(
    st.just(Zeros()),
    st.builds(Constant, st.floats(-2, 2)),
    st.builds(Normal, rates),
    st.builds(TruncatedNormal, rates),
    st.builds(Xavier, rates),
    st.builds(FanIn, rates),
)
norms = st.builds(LayerNorm, rates) | st.builds(RMSNorm, rates)


@st.composite
def multi_heads(draw):
    heads = draw(st.integers(1, 6))
    ids = draw(st.none() | st.permutations(range(heads)).map(tuple))
    return MultiHead(
        num_heads=heads,
        head_ids=ids,
        head_dim=draw(sizes),
        value_dim=draw(st.none() | sizes),
        scale=draw(st.none() | st.floats(1e-6, 10.0)),
        projection_bias=draw(st.booleans()),
    )


attentions = st.one_of(
    multi_heads(),
    st.just(NoHeads(output_bias=False)),
    st.builds(tiny.collaborative, st.integers(1, 6), mixing_init=initializers, content_bias=st.booleans()),
)
layers = st.builds(
    Layer,
    attention=attentions,
    feed_forward=st.builds(Dense, sizes) | st.builds(GatedDense, sizes, st.sampled_from(["relu", "silu"])),
    residual=st.builds(PostNorm, norms) | st.builds(PreNorm, norms),
    dropout=rates,
)
runs = st.lists(st.tuples(layers, st.integers(1, 4)), min_size=1, max_size=3)
decoders = st.builds(
    DecoderModel,
    width=sizes,
    initializer=initializers,
    embeddings=st.builds(
        Embeddings,
        vocab_size=sizes,
        positions=st.just(Sinusoidal()) | st.just(NoPositions()) | st.builds(Learned, sizes),
        norm=st.none() | norms,
    ),
    decoder=st.builds(
        Stack,
        layers=runs.map(lambda counted: tuple(layer for layer, count in counted for _ in range(count))),
        final_norm=st.none() | norms,
    ),
    output=st.builds(Tied, st.booleans()) | st.builds(Untied, st.booleans()),
)


@given(decoders)
def test_every_config_survives_json(config):
    assert from_data(ModelConfig, json.loads(dumps(config))) == config


@given(
    st.builds(
        Plain,
        st.integers(),
        rate=st.floats(allow_nan=False, allow_infinity=False),
        flag=st.booleans(),
        name=st.text(),
        maybe=st.none() | st.integers(),
        choice=st.sampled_from(["a", "b"]),
        pair=st.tuples(st.integers(), rates),
        numbers=st.lists(st.integers()).map(tuple),
        table=st.dictionaries(st.text(), rates),
        initializer=initializers,
    )
)
def test_every_field_type_survives_json(value):
    assert from_data(Plain, json.loads(dumps(value))) == value


def test_equal_neighbours_are_written_once():
    data = to_data(tiny.decoder_config(*[tiny.layer()] * 12, tiny.layer(tiny.collaborative())))
    written = data["decoder"]["layers"]
    assert [(entry["repeat"], entry["item"]["attention"]["kind"]) for entry in written] == [
        (12, "multi_head"),
        (1, "collaborative"),
    ]


def test_every_field_is_written_so_that_defaults_may_change():
    written = to_data(tiny.multi_head())
    assert written["kind"] == "multi_head" == kind_of(tiny.multi_head())
    assert written.keys() - {"kind"} == {field.name for field in dataclasses.fields(MultiHead)}


def test_absent_fields_take_their_defaults_and_layers_may_be_listed_plainly():
    layer = {
        "attention": {"kind": "multi_head", "num_heads": 2, "head_dim": 4},
        "feed_forward": {"kind": "dense", "hidden": 8},
    }
    stack = from_data(Stack, {"layers": [layer, {"repeat": 2, "item": layer}]})
    assert stack.layers == (Layer(attention=tiny.multi_head(2), feed_forward=Dense(8)),) * 3


def test_integers_are_floats_too_but_truths_are_no_numbers():
    assert from_data(Plain, {"number": 1, "rate": 2}).rate == 2.0
    with pytest.raises(ConfigError, match=r"config\.number: "):
        from_data(Plain, {"number": True})


def broken(path: str, value: Any) -> dict[str, Any]:
    """A decoder's JSON with one entry replaced (or removed, by `...`), at a path with dots."""
    data = to_data(tiny.decoder_config(tiny.layer()))
    data["decoder"]["layers"] = [data["decoder"]["layers"][0]["item"]]
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
    "path, value, message",
    [
        ("widht", 3, "config.widht: unknown field 'widht'; did you mean 'width'?"),
        ("width", "wide", "config.width: expected int, got 'wide'"),
        ("width", 0, "config.width: must be an integer of at least 1, got 0"),
        ("width", ..., "config.width: missing"),
        ("embeddings", 7, "config.embeddings: expected a group of fields, got 7"),
        ("embeddings.dropout", 1.0, "config.embeddings.dropout: must be at least 0 and below 1, got 1.0"),
        ("decoder.layers", {}, "config.decoder.layers: expected a list, got a dict"),
        ("decoder.layers", [], "config.decoder.layers: a stack needs at least one layer"),
        (
            "decoder.layers.0.attention.kind",
            "multihead",
            "config.decoder.layers[0].attention.kind: unknown kind 'multihead'; did you mean 'multi_head'?",
        ),
        (
            "decoder.layers.0.attention.kind",
            "dense",
            f"config.decoder.layers[0].attention.kind: {unknown_name('kind', 'dense', kinds_of(Attention))}",
        ),
        (
            "decoder.layers.0.attention.kind",
            ["multi_head"],
            f"config.decoder.layers[0].attention.kind: {unknown_name('kind', 'a list', kinds_of(Attention))}",
        ),
        (
            "decoder.layers.0.attention.kind",
            ...,
            f"config.decoder.layers[0].attention.kind: missing; known: {', '.join(kinds_of(Attention))}",
        ),
        (
            "decoder.layers.0.attention.num_heads",
            -2,
            "config.decoder.layers[0].attention.num_heads: must be an integer of at least 1, got -2",
        ),
        (
            "decoder.layers.0.attention.head_ids",
            [0, 1],
            "config.decoder.layers[0].attention.head_ids: names 2 heads, but num_heads is 4",
        ),
        (
            "decoder.layers.0.attention.head_ids",
            [0, "1"],
            "config.decoder.layers[0].attention.head_ids[1]: expected int, got '1'",
        ),
        (
            "decoder.layers.0.feed_forward.activation",
            "gelo",
            "config.decoder.layers[0].feed_forward.activation: unknown choice 'gelo'; did you mean 'gelu'?",
        ),
        (
            "decoder.layers",
            [{"repeat": "2", "item": {}}],
            "config.decoder.layers[0].attention: missing",
        ),
    ],
)
def test_what_cannot_become_a_config_is_one_line_that_names_the_field(path, value, message):
    with pytest.raises(ConfigError) as error:
        from_data(ModelConfig, broken(path, value))
    assert str(error.value) == message
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "data, message",
    [
        ({}, "config.number: missing"),
        ([], "config: expected a group of fields, got a list"),
        ({"number": 1.5}, "config.number: expected int, got 1.5"),
        ({"number": None}, "config.number: expected int, got None"),
        ({"number": 1, "flag": 1}, "config.flag: expected bool, got 1"),
        ({"number": 1, "rate": "fast"}, "config.rate: expected float, got 'fast'"),
        ({"number": 1, "rate": float("nan")}, "config.rate: must be finite, got nan"),
        ({"number": 1, "maybe": "x"}, "config.maybe: expected int, got 'x'"),
        ({"number": 1, "choice": "c"}, "config.choice: unknown choice 'c'; known: a, b"),
        ({"number": 1, "choice": ["a"]}, "config.choice: unknown choice 'a list'; known: a, b"),
        ({"number": 1, "pair": [1]}, "config.pair: expected 2 items, got 1"),
        ({"number": 1, "pair": [1, "x"]}, "config.pair[1]: expected float, got 'x'"),
        ({"number": 1, "numbers": [1, True]}, "config.numbers[1]: expected int, got True"),
        (
            {"number": 1, "numbers": [1, {"repeat": 10**4, "item": 1}]},
            "config.numbers[1].repeat: more than 10,000 items in all, got 10000",
        ),
        ({"number": 1, "numbers": [{"repeat": 0, "item": 1}]}, "config.numbers[0].repeat: must be at least 1, got 0"),
        ({"number": 1, "table": {"x": "y"}}, "config.table.x: expected float, got 'y'"),
        ({"number": 1, "zzz": 1}, "config.zzz: unknown field 'zzz'; known: "),
    ],
)
def test_wrong_types_are_one_line_that_names_the_field(data, message):
    with pytest.raises(ConfigError) as error:
        from_data(Plain, data)
    assert str(error.value).startswith(message)
    assert message.endswith("known: ") or str(error.value) == message


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["kind", "width", "decoder", "layers", "x"]), inner, max_size=3)
        ),
    )
)
def test_any_json_is_a_config_or_a_config_error(data):
    with pytest.raises(ConfigError):
        from_data(ModelConfig, data)


def test_a_kind_is_registered_once():
    with pytest.raises(RuntimeError, match="kind 'multi_head' is registered twice"):
        kind("multi_head")(Plain)
