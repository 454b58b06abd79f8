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


def fields(**data):
    return Fields(data, "dir/config.json")


RATE = number("drop", 0.5)
INNER = record(Inner, rate=RATE)
OUTER = record(Outer, width=size("d"), inner=INNER, layers=Layers(size("n", 2), record(Inner, rate=number("lower"))))
SHARED = record(Outer, width=size("d"), inner=INNER, layers=Layers(size("n"), INNER))
CHOICE = Choice(text("how", "none"), {"none": Fixed(None), "inner": INNER})
KINDS = Choice(flag("b"), {True: record(Inner, rate=RATE, kind="b"), False: record(Inner, rate=RATE, kind="a")})
FLAGGED = Optional(INNER, when=flag("has", False))
UNEQUAL = Layers(
    size("n"),
    record(Inner, rate=number("lower"), kind=text("kind")),
    lambda read, count: [{"lower": rate} for rate in read.data["rates"][:count]],
    lambda written: {"rates": [layer["lower"] for layer in written]},
)
# The file counts rows; ours are an offset and the rows behind it.
ROWS = record(
    Outer,
    width=computed(lambda fields: size("rows").read(fields) - 2, "rows"),
    inner=Custom(lambda fields: None, lambda value: {"extra": 1}),
    layers=(),
).writing(lambda value: {"rows": value.width + 2})


@pytest.mark.parametrize(
    ("entry", "data", "value"),
    [
        (OUTER, {"d": 8, "drop": 0.25, "n": 3, "lower": 0.125}, Outer(8, Inner(0.25), (Inner(0.125),) * 3)),
        (SHARED, {"d": 8, "drop": 0.25, "n": 1}, Outer(8, Inner(0.25), (Inner(0.25),))),
        (activation("act"), {"act": "gelu_new"}, "gelu_tanh"),
        (CHOICE, {"how": "none"}, None),
        (CHOICE, {"how": "inner", "drop": 0.25}, Inner(0.25)),
        (KINDS, {"b": True, "drop": 0.5}, Inner(0.5, "b")),
        (KINDS, {"b": False, "drop": 0.5}, Inner(0.5, "a")),
        (FLAGGED, {"has": False}, None),
        (FLAGGED, {"has": True, "drop": 0.25}, Inner(0.25)),
        (TrainingOnly(INNER), {"drop": 0.25}, Inner(0.25)),
        (ROWS, {"rows": 5, "extra": 1}, Outer(3, None)),
    ],
)
def test_entries_are_read_and_written(entry, data, value):
    assert entry.read(fields(**data)) == value
    assert entry.write(value, "") == data
    assert entry.accepts(value)


def test_values_that_fields_do_not_say():
    for default, found in ((3, 3), (size("other"), 7), (lambda fields: 2 * size("other").read(fields), 14)):
        assert [size("d", default).read(fields(other=7, d=d)) for d in (None, 1)] == [found, 1]
    assert activation("act", "gelu_new").read(fields()) == activation("act").read(fields(act="gelu_pytorch_tanh"))
    heads = share(size("d"), size("heads"))
    assert (heads.read(fields(d=8, heads=4)), heads.write(2, "")) == (2, {})
    assert CHOICE.read(fields()) is None
    by_tensor = Optional(INNER, when=has_tensor("pooler."))
    assert by_tensor.read(fields()) is None
    assert by_tensor.read(Fields({}, tensors=["bert.pooler.dense.weight"])) == Inner(0.5)
    assert TrainingOnly(INNER).write(3, "") == {}
    layers = (Inner(0.25, "b"), Inner(0.5, "b"))
    assert UNEQUAL.read(fields(n=2, rates=[0.25, 0.5], kind="b", lower=0.0)) == layers
    assert UNEQUAL.write(layers, "") == {"n": 2, "rates": [0.25, 0.5]}


@pytest.mark.parametrize(
    ("entry", "data", "field"),
    [
        (size("d"), {}, "d"),
        (share(size("d"), size("heads")), {"d": 8, "heads": 3}, "heads"),
        (CHOICE, {"how": "x"}, "how"),
        # What a class refuses is an error of the field in the file, or of ours where none says it.
        (INNER, {"drop": 1.5}, "drop"),
        (OUTER, {"d": 8, "drop": 0.5, "lower": 2.0}, "lower"),
        (UNEQUAL, {"n": 1, "rates": [2.0], "kind": "b"}, "lower"),
        (record(Inner, rate=0.5, kind="bad"), {}, "kind"),
        *((kind("x"), {"x": value}, "x") for kind, value in ((size, True), (flag, 1), (text, 1), (number, "1"))),
    ],
)
def test_values_that_are_refused_by_their_field(entry, data, field):
    with pytest.raises(ConfigError, match=f"^dir/config.json: {field}: "):
        entry.read(fields(**data))


def test_parts_that_no_field_can_say():
    assert not KINDS.accepts(Inner(0.5, "c"))
    with pytest.raises(InexpressibleError, match=r"^a\.b is 3"):
        CHOICE.write(3, "a.b")
    with pytest.raises(InexpressibleError, match="inner is int"):
        OUTER.write(Outer(8, 3), "")  # type: ignore[arg-type]


FORMS = [SAME, FLAT, leading(), leading(2), MATRIX, TRANSPOSED, LAST_FIRST]


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    inputs = draw(st.integers(1, len(shape) - 1))
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
    into, out = (
        weight(shape, (None,) * 3, inputs=inputs) for shape, inputs in (((6, 4, 2), (0,)), ((3, 2, 8), (0, 1)))
    )
    ours = np.einsum("ni,ihd->nhd", x, TRANSPOSED.load(theirs, [into], 0))
    np.testing.assert_allclose(ours, (x @ theirs.T).reshape(3, 4, 2))
    ours = np.einsum("nhd,hdo->no", x.reshape(3, 3, 2), TRANSPOSED.load(theirs, [out], 0))
    np.testing.assert_allclose(ours, x @ theirs.T)


def test_fused_parts_lie_side_by_side():
    parts = [weight((3, heads, 2), (None,) * 3, inputs=(0,)) for heads in (2, 1, 3)]
    arrays = [np.full(part.shape, i, np.float32) for i, part in enumerate(parts)]
    theirs = MATRIX.store(arrays, parts)
    assert theirs.shape == MATRIX.shape(parts) == (3, 12)
    assert theirs[0].tolist() == [0] * 4 + [1] * 2 + [2] * 6
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(MATRIX.load(theirs, parts, i), array)
