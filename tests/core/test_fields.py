"""Types and bounds of config fields: what is refused, and the one line that says so; labels that are class names."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import pytest

import headjax
from headjax.core.class_names import ClassIndex, class_numbers, reorder, same_classes, tell_nothing
from headjax.core.fields import Amount, Checked, Count, NotNegative, Positive, Rate, Share, read_amount, shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part(Checked):
    """A config inside another."""

    size: headjax.nn.Size = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whole(Checked):
    """One field of every kind."""

    size: headjax.nn.Size = 1
    maybe: headjax.nn.Size | None = None
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
    sizes: tuple[headjax.nn.Size, ...] = ()
    pair: tuple[float, float] = (0.0, 1.0)
    anything: Any = None
    function: Callable[[int], int] = abs


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("size", wrong) for wrong in (0, 2.0, True, None, 2**63)),
        *(("maybe", 0), ("count", -1), ("positive", 0.0), ("positive", math.nan), ("weight", -1e-9), ("share", 1.1)),
        *(("number", wrong) for wrong in (math.inf, True, "1")),
        *(("rate", wrong) for wrong in (1.0, 1 - 1e-9, 2.0**1000)),
        *(("flag", 1), ("text", 1), ("choice", "middle"), ("part", "part"), ("part", Whole), ("parts", [Part()])),
        *(("parts", (Part(), 3)), ("sizes", (1, 0))),
    ],
)
def test_values_out_of_bounds(name, wrong):
    place = f"{name}[1]" if isinstance(wrong, tuple) else name
    with pytest.raises(headjax.ConfigError) as error:
        Whole(**{name: wrong})
    assert str(error.value).startswith(f"{place}: ")
    assert len(str(error.value)) < 100


def test_a_value_is_shown_in_a_few_words():
    values = {"None": None, "3": 3, "'word'": "word", "a list": [1], "an object": object()}
    assert [shown(value) for value in values.values()] == list(values)
    assert shown("x" * 100) == "a str"
    for name in ("size", "rate"):
        with pytest.raises(headjax.ConfigError, match=f"^{name}: .* an int of 16,610 bits$"):
            Whole(**{name: 10**5000})


def test_text_becomes_an_amount():
    assert read_amount("60%", "x") == Amount(0.6, True)
    assert read_amount(" 1.5e9 ", "x") == Amount(1.5e9, False)
    assert (read_amount("60%", "x").of(50.0), read_amount("20", "x").of(50.0)) == (30.0, 20.0)


@pytest.mark.parametrize("text", ["", "%", "-1", "-1%", "many", "1e999", "nan", "5%%", "40%"])
def test_other_text_is_none(text):
    with pytest.raises(ValueError, match=f"expected a number such as .*'{text}'"):
        read_amount(text, "0.3", lambda amount: amount.number < 0.4)


def test_a_label_finds_its_class_by_case_only_where_that_is_needed():
    assert ClassIndex(("dog", "cat")).find("Cat") == 1
    assert ClassIndex(("cat", "Cat")).find("Cat") == 1
    assert ClassIndex(("cat", "Cat")).find("CAT") is None
    assert ClassIndex(("dog", "cat")).find("cow") is None


def test_classifications_are_compared_by_names_that_tell_something():
    assert reorder(("b", "a"), ("a", "b")) == (1, 0)
    assert reorder(("b", "c"), ("a", "b")) is None
    assert tell_nothing(class_numbers(3))
    assert not tell_nothing(("1", "0"))
    assert same_classes(("LABEL_0", "LABEL_1"), ("no", "yes"))
    assert not same_classes(("yes", "no"), ("no", "yes"))
    assert not same_classes(("no", "yes"), ("no", "yes", "maybe"))
    assert same_classes([f"n{number:08d}" for number in range(1000)], [f"class {number}" for number in range(1000)])
