"""Tables between a config.json and our configs, and forms between their tensors and ours: what is written is read."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headjax.core.errors import ConfigError, require
from headjax.core.tensors import weight
from headjax.hub.fields import Fields
from headjax.hub.rules import FLAT, LAST_FIRST, MATRIX, SAME, TRANSPOSED, leading
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
    ("entry", "values"),
    [
        (size("x"), (0, True)),
        (integer("x"), (1.0,)),
        (number("x"), ("1", float("nan"), float("-inf"))),
        (flag("x"), (1,)),
        (text("x"), (1,)),
        (activation("x"), ("mish",)),
    ],
)
def test_values_of_another_type(entry, values):
    for value in values:
        assert refused(entry, x=value).startswith("dir/config.json: x: ")


def test_what_a_class_refuses_is_an_error_of_the_field():
    """`rate` is called `drop` in the file; `kind` has no field, so that only the file can be named."""
    assert refused(INNER, drop=1.5) == "dir/config.json: drop: must be below 1, got 1.5"
    assert refused(OUTER, d=8, drop=0.5, lower=2.0) == "dir/config.json: lower: must be below 1, got 2.0"
    assert refused(record(Inner, rate=0.5, kind="bad")) == "dir/config.json: kind: must not be bad"


CHOICE = Choice(text("how", "none"), {"none": Fixed(None), "inner": INNER})
KINDS = Choice(flag("b"), {True: record(Inner, rate=RATE, kind="b"), False: record(Inner, rate=RATE, kind="a")})
FLAGGED = Optional(INNER, when=flag("has", False))


@pytest.mark.parametrize(
    ("entry", "data", "value"),
    [
        (activation("act"), {"act": "gelu_new"}, "gelu_tanh"),
        (CHOICE, {"how": "none"}, None),
        (CHOICE, {"how": "inner", "drop": 0.25}, Inner(0.25)),
        (KINDS, {"b": True, "drop": 0.5}, Inner(0.5, "b")),
        (KINDS, {"b": False, "drop": 0.5}, Inner(0.5, "a")),
        (FLAGGED, {"has": False}, None),
        (FLAGGED, {"has": True, "drop": 0.25}, Inner(0.25)),
        (TrainingOnly(INNER), {"drop": 0.25}, Inner(0.25)),
    ],
)
def test_entries_are_read_and_written(entry, data, value):
    assert entry.read(fields(**data)) == value
    assert entry.write(value, "") == data
    assert entry.accepts(value)


def test_values_that_fields_do_not_say():
    assert activation("act", "gelu_new").read(fields()) == activation("act").read(fields(act="gelu_pytorch_tanh"))
    heads = share(size("d"), size("heads"))
    assert (heads.read(fields(d=8, heads=4)), heads.write(2, "")) == (2, {})
    assert refused(heads, d=8, heads=3).startswith("dir/config.json: heads: ")
    assert CHOICE.read(fields()) is None
    assert refused(CHOICE, how="x").startswith("dir/config.json: how: ")
    with pytest.raises(InexpressibleError, match=r"^a\.b is 3"):
        CHOICE.write(3, "a.b")
    assert not KINDS.accepts(Inner(0.5, "c"))
    by_tensor = Optional(INNER, when=has_tensor("pooler."))
    assert by_tensor.read(fields()) is None
    assert by_tensor.read(Fields({}, tensors=["bert.pooler.dense.weight"])) == Inner(0.5)
    assert TrainingOnly(INNER).write(3, "") == {}


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
    with pytest.raises(InexpressibleError, match="inner is int"):
        OUTER.write(Outer(8, 3), "")  # type: ignore[arg-type]


FORMS = [SAME, FLAT, leading(), leading(2), MATRIX, TRANSPOSED, LAST_FIRST]


@st.composite
def tensors(draw, smallest=2):
    shape = draw(st.lists(st.integers(1, 4), min_size=smallest, max_size=4))
    inputs = draw(st.integers(1, len(shape) - 1)) if len(shape) > 1 else 1
    return weight(tuple(shape), (None,) * len(shape), inputs=tuple(range(inputs)))


@pytest.mark.parametrize("form", FORMS, ids=range(len(FORMS)))
@given(tensor=tensors())
def test_there_and_back(form, tensor):
    ours = np.arange(tensor.size, dtype=np.float32).reshape(tensor.shape)
    theirs = form.store([ours], [tensor])
    assert theirs.shape == form.shape([tensor])
    np.testing.assert_array_equal(form.load(theirs, [tensor], 0), ours)


def test_linear_layers_are_transposed():
    """y = x W^T there is sum over the inputs here, whichever dimensions are the inputs."""
    generator = np.random.default_rng(0)
    x, theirs = generator.standard_normal((3, 6)), generator.standard_normal((8, 6))
    into = weight((6, 4, 2), (None,) * 3, inputs=(0,))
    np.testing.assert_allclose(
        np.einsum("ni,ihd->nhd", x, TRANSPOSED.load(theirs, [into], 0)), (x @ theirs.T).reshape(3, 4, 2)
    )
    out = weight((3, 2, 8), (None,) * 3, inputs=(0, 1))
    np.testing.assert_allclose(
        np.einsum("nhd,hdo->no", x.reshape(3, 3, 2), TRANSPOSED.load(theirs, [out], 0)), x @ theirs.T
    )


def test_fused_parts_lie_side_by_side():
    parts = [weight((3, heads, 2), (None,) * 3, inputs=(0,)) for heads in (2, 1, 3)]
    arrays = [np.full(part.shape, i, np.float32) for i, part in enumerate(parts)]
    form = MATRIX
    theirs = form.store(arrays, parts)
    assert theirs.shape == form.shape(parts) == (3, 12)
    assert theirs[0].tolist() == [0] * 4 + [1] * 2 + [2] * 6
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(form.load(theirs, parts, i), array)
