"""Tables between a `config.json` and our configs: what is written is read, and errors name the file's field."""

from __future__ import annotations

import dataclasses
import re

import pytest

from headjax.core.errors import ConfigError, require
from headjax.hub.fields import Fields
from headjax.hub.table import (
    Choice,
    Custom,
    Fixed,
    InexpressibleError,
    Layers,
    Optional,
    TrainingOnly,
    activation,
    computed,
    flag,
    has_tensor,
    integer,
    number,
    record,
    share,
    size,
    text,
)


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float
    kind: str = "a"

    def __post_init__(self) -> None:
        require(self.rate < 1.0, "rate", f"must be below 1, got {self.rate}")
        require(self.kind != "bad", "kind", "must not be bad")


@dataclasses.dataclass(frozen=True)
class Outer:
    width: int
    inner: Inner | None
    layers: tuple[Inner, ...] = ()


RATE = number("drop", 0.5)
INNER = record(Inner, rate=RATE)
OUTER = record(Outer, width=size("d"), inner=INNER, layers=Layers(size("n", 2), record(Inner, rate=number("lower"))))


def fields(**data):
    return Fields(data, "dir/config.json")


def refused(entry, **data):
    with pytest.raises(ConfigError) as caught:
        entry.read(fields(**data))
    return str(caught.value)


def test_what_is_written_is_read():
    value = Outer(8, Inner(0.25), (Inner(0.125),) * 3)
    written = OUTER.write(value, "")
    assert written == {"d": 8, "drop": 0.25, "n": 3, "lower": 0.125}
    assert OUTER.read(fields(**written)) == value


def test_defaults_are_values_entries_and_functions():
    for default, found in ((3, 3), (size("other"), 7), (lambda fields: 2 * size("other").read(fields), 14)):
        assert size("d", default).read(fields(other=7)) == found
        assert size("d", default).read(fields(other=7, d=None)) == found
        assert size("d", default).read(fields(d=1)) == 1
    assert refused(size("d")) == "dir/config.json: d: missing"


@pytest.mark.parametrize(
    ("entry", "value", "said"),
    [
        (size("x"), 0, "expected a positive integer, got 0"),
        (size("x"), True, "expected a positive integer, got True"),
        (integer("x"), 1.0, "expected an integer, got 1.0"),
        (number("x"), "1", "expected a number, got '1'"),
        (number("x"), float("nan"), "expected a finite number, got nan"),
        (number("x"), float("-inf"), "expected a finite number, got -inf"),
        (flag("x"), 1, "expected true or false, got 1"),
        (text("x"), 1, "expected a string, got 1"),
        (activation("x"), "mish", "unknown activation 'mish'; known: gelu, gelu_new"),
    ],
)
def test_values_of_another_type(entry, value, said):
    assert refused(entry, x=value).startswith(f"dir/config.json: x: {said}")


def test_what_a_class_refuses_is_an_error_of_the_field():
    """`rate` is called `drop` in the file; `kind` has no field, so that only the file can be named."""
    assert refused(INNER, drop=1.5) == "dir/config.json: drop: must be below 1, got 1.5"
    assert refused(OUTER, d=8, drop=0.5, lower=2.0) == "dir/config.json: lower: must be below 1, got 2.0"
    assert refused(record(Inner, rate=0.5, kind="bad")) == "dir/config.json: kind: must not be bad"


def test_activations_have_two_names():
    entry = activation("act", "gelu_new")
    assert entry.read(fields()) == entry.read(fields(act="gelu_pytorch_tanh")) == "gelu_tanh"
    assert entry.write("gelu_tanh", "") == {"act": "gelu_new"}


def test_heads_share_the_width():
    entry = share(size("d"), size("heads"))
    assert entry.read(fields(d=8, heads=4)) == 2
    assert entry.write(2, "") == {}
    assert refused(entry, d=8, heads=3) == "dir/config.json: heads: 3 heads do not divide a width of 8"


def test_choices():
    entry = Choice(text("how", "none"), {"none": Fixed(None), "inner": INNER})
    assert entry.read(fields()) is None
    assert entry.read(fields(how="inner", drop=0.25)) == Inner(0.25)
    assert entry.write(None, "") == {"how": "none"}
    assert entry.write(Inner(0.25), "") == {"how": "inner", "drop": 0.25}
    assert refused(entry, how="x") == "dir/config.json: how: 'x' is not supported; supported: 'none', 'inner'"
    with pytest.raises(InexpressibleError, match=re.escape("a.b is 3, how can say 'none', 'inner'")):
        entry.write(3, "a.b")


def test_layers_that_differ_read_fields_of_their_own():
    def spread(read, count):
        return [{"lower": rate} for rate in read.data["rates"][:count]]

    def gather(written):
        return {"rates": [layer["lower"] for layer in written]}

    entry = Layers(size("n"), record(Inner, rate=number("lower"), kind=text("kind")), spread, gather)
    layers = entry.read(fields(n=2, rates=[0.25, 0.5], kind="b", lower=0.0))
    assert layers == (Inner(0.25, "b"), Inner(0.5, "b"))
    assert entry.write(layers, "") == {"n": 2, "rates": [0.25, 0.5]}
    assert refused(entry, n=1, rates=[2.0], kind="b") == "dir/config.json: lower: must be below 1, got 2.0"


def test_a_choice_between_constants():
    entry = Choice(flag("b"), {True: record(Inner, rate=RATE, kind="b"), False: record(Inner, rate=RATE, kind="a")})
    for value in (Inner(0.5, "a"), Inner(0.5, "b")):
        assert entry.read(fields(**entry.write(value, ""))) == value
    assert not entry.accepts(Inner(0.5, "c"))


def test_optional_values():
    flagged = Optional(INNER, when=flag("has", False))
    for value in (None, Inner(0.25)):
        assert flagged.read(fields(**flagged.write(value, ""))) == value
    by_tensor = Optional(INNER, when=has_tensor("pooler."))
    assert by_tensor.read(fields()) is None
    assert by_tensor.read(Fields({}, tensors=["bert.pooler.dense.weight"])) == Inner(0.5)


def test_values_for_training_are_left_out_where_there_is_no_field():
    entry = TrainingOnly(INNER)
    assert entry.write(Inner(0.25), "") == {"drop": 0.25}
    assert entry.write(3, "") == {}


def test_the_first_part_writes_a_field_that_two_share():
    entry = record(Outer, width=size("d"), inner=INNER, layers=Layers(size("n"), INNER))
    assert entry.write(Outer(8, Inner(0.25), (Inner(0.5),)), "") == {"d": 8, "drop": 0.25, "n": 1}


def test_fields_of_several_parts():
    """The file counts rows; ours are an offset and the rows behind it."""
    entry = record(
        Outer,
        width=computed(lambda fields: size("rows").read(fields) - 2, "rows"),
        inner=Custom(lambda fields: None, lambda value: {"extra": 1}),
    ).writing(lambda value: {"rows": value.width + 2})
    assert entry.write(Outer(3, None), "") == {"rows": 5, "extra": 1}
    assert entry.having(layers=()).read(fields(rows=5)) == Outer(3, None)


def test_another_class_has_no_fields():
    with pytest.raises(InexpressibleError, match=re.escape("inner is int, config.json says Inner")):
        OUTER.write(Outer(8, 3), "")  # type: ignore[arg-type]
