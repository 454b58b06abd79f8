"""Types and bounds of config fields: what is refused, and the one line that says so."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import pytest

from headjax.core.errors import ConfigError
from headjax.core.fields import (
    Amount,
    Checked,
    Count,
    NotNegative,
    Positive,
    Ramp,
    Rate,
    Share,
    Size,
    number_or_ramp,
    read_amount,
    shown,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part(Checked):
    """A config inside another."""

    size: Size = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whole(Checked):
    """One field of every kind."""

    size: Size = 1
    maybe: Size | None = None
    count: Count = 0
    positive: Positive = 1.0
    weight: NotNegative = 0.0
    rate: Rate = 0.0
    share: Share = 1.0
    number: float = -3.5
    whole: int = -3
    flag: bool = False
    text: str = ""
    choice: Literal["left", "right"] = "left"
    part: Part = Part()
    parts: tuple[Part, ...] = ()
    sizes: tuple[Size, ...] = ()
    pair: tuple[float, float] = (0.0, 1.0)
    anything: Any = None
    function: Callable[[int], int] = abs
    changing: NotNegative | Ramp = 0.0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"changing": 0.5},
        {"changing": Ramp(0.9, 0.5)},
        {"maybe": 3, "positive": 2, "rate": 0, "share": 0, "number": -1},
        {"parts": (Part(), Part(size=4)), "sizes": (1, 2), "anything": object(), "choice": "right"},
    ],
)
def test_values_within_their_bounds(fields):
    whole = Whole(**fields)
    assert all(getattr(whole, name) == value for name, value in fields.items())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 0}, "size: must be an integer of at least 1, got 0"),
        ({"size": 2.0}, "size: expected int, got 2.0"),
        ({"size": True}, "size: expected int, got True"),
        ({"size": None}, "size: expected int, got None"),
        ({"changing": -1.0}, "changing: must not be negative, got -1.0"),
        ({"changing": None}, "changing: expected float, got None"),
        ({"changing": Part()}, "changing: expected float, got a Part"),
        ({"maybe": 0}, "maybe: must be an integer of at least 1, got 0"),
        ({"count": -1}, "count: must not be negative, got -1"),
        ({"positive": 0.0}, "positive: must be positive, got 0.0"),
        ({"positive": math.nan}, "positive: must be finite, got nan"),
        ({"number": math.inf}, "number: must be finite, got inf"),
        ({"number": True}, "number: expected float, got True"),
        ({"number": "1"}, "number: expected float, got '1'"),
        ({"weight": -1e-9}, "weight: must not be negative, got -1e-09"),
        ({"rate": 1.0}, "rate: must be at least 0 and below 1, got 1.0"),
        ({"rate": 1 - 1e-9}, "rate: must be below 1 in float32, got 0.999999999"),
        ({"size": 2**63}, "size: must be below 2**63 in size, got 9223372036854775808"),
        ({"size": 10**5000}, "size: must be below 2**63 in size, got an int of 16,610 bits"),
        ({"rate": 10**400}, "rate: must be at most 3.4e+38 in size (float32), got an int of 1,329 bits"),
        ({"share": 1.1}, "share: must be from 0 to 1, got 1.1"),
        ({"flag": 1}, "flag: expected bool, got 1"),
        ({"text": 1}, "text: expected str, got 1"),
        ({"choice": "middle"}, "choice: must be one of left, right, got 'middle'"),
        ({"part": "part"}, "part: expected Part, got 'part'"),
        ({"part": Whole}, "part: expected Part, got a type"),
        ({"parts": [Part()]}, "parts: expected a tuple, got a list"),
        ({"parts": (Part(), 3)}, "parts[1]: expected Part, got 3"),
        ({"sizes": (1, 0)}, "sizes[1]: must be an integer of at least 1, got 0"),
    ],
)
def test_values_out_of_bounds(fields, message):
    with pytest.raises(ConfigError) as error:
        Whole(**fields)
    assert str(error.value) == message


def test_a_value_is_shown_in_a_few_words():
    values = {"None": None, "3": 3, "'word'": "word", "a list": [1], "an object": object()}
    assert [shown(value) for value in values.values()] == list(values)
    assert shown("x" * 100) == "a str"


def test_a_number_or_two_that_training_goes_between():
    assert number_or_ramp("0.5") == 0.5
    assert number_or_ramp("2:1") == Ramp(2.0, 1.0)
    assert str(Ramp(2.0, 1.0)) == "2:1"


def test_text_becomes_an_amount():
    assert read_amount("60%", "x") == Amount(0.6, True)
    assert read_amount(" 1.5e9 ", "x") == Amount(1.5e9, False)
    assert (read_amount("60%", "x").of(50.0), read_amount("20", "x").of(50.0)) == (30.0, 20.0)


@pytest.mark.parametrize("text", ["", "%", "-1", "-1%", "many", "1e999", "nan", "5%%", "40%"])
def test_other_text_is_no_amount(text):
    with pytest.raises(ValueError, match=f"^expected a number such as 0.3, got '{text}'$"):
        read_amount(text, "0.3", lambda amount: amount.number < 0.4)


@pytest.mark.parametrize("text", ["", "a", "1:", "1:2:3", "-1:1", "nan:1"])
def test_other_text_is_neither_a_number_nor_two(text):
    with pytest.raises(ValueError, match="expected a number such as"):
        number_or_ramp(text)
