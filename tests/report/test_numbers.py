"""Numbers as people read them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headjax.report import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (12.5, "12.5"),
        (1234, "1.23 K"),
        (1_234_567, "1.23 M"),
        (7.24e9, "7.24 B"),
        (-1500, "-1.50 K"),
    ],
)
def test_counts(value, text):
    assert numbers.count(value) == text


def test_rounding_up_changes_the_prefix_and_not_the_width():
    assert numbers.count(999_600) == "1.00 M"
    assert numbers.size(999.7) == "1.00 KB"
    assert numbers.count(9.999) == "10.0"


def test_units():
    assert numbers.flops(45.6e9) == "45.6 GFLOP"
    assert numbers.flops(7) == "7 FLOP"
    assert numbers.size(512) == "512 B"
    assert numbers.size(12_300) == "12.3 KB"
    assert numbers.percent(0.4213) == "42.1%"
    assert numbers.ratio(1.234) == "1.23×"  # noqa: RUF001
    assert numbers.fixed(2)(9.876) == "9.88"
    assert numbers.significant(0.0012345) == "0.00123"
    assert numbers.significant(12_345_678) == "1.23e+07"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.000123, "123 µs"),
        (0.0123, "12.3 ms"),
        (0.9999, "1.00 s"),
        (1.234, "1.23 s"),
        (59.97, "1 min 00 s"),
        (245, "4 min 05 s"),
        (3599.9, "1 h 00 min"),
        (3720, "1 h 02 min"),
        (-1.5, "-1.50 s"),
    ],
)
def test_durations(seconds, text):
    assert numbers.duration(seconds) == text


FORMATS = [
    numbers.count,
    numbers.flops,
    numbers.size,
    numbers.duration,
    numbers.percent,
    numbers.ratio,
    numbers.significant,
    numbers.fixed(1),
]


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_absent_prints_as_a_dash(form):
    assert form(None) == form(math.nan) == numbers.MISSING
    assert form(math.inf) == "∞"
    assert form(-math.inf) == "-∞"


@given(st.floats(1e-3, 1e14))
def test_a_count_reads_back_to_three_digits(value):
    digits, _, prefix = numbers.count(value).partition(" ")
    scale = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[prefix]
    assert float(digits) * scale == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (numbers.count, 1400, "1,400"),
        (numbers.count, 0.2, "0.2"),
        (numbers.count, 1_400_000, "1.4 M"),
        (numbers.count, 2_000_000, "2 M"),
        (numbers.size, 100_000, "100 KB"),
        (numbers.flops, 1_050_000, "1.05 MFLOP"),
        (numbers.percent, 0.2, "20%"),
        (numbers.percent, 0.125, "12.5%"),
    ],
)
def test_marks_of_an_axis_carry_no_idle_zeros(form, value, text):
    assert numbers.tick(form)(value) == text


@pytest.mark.parametrize(
    ("values", "power"),
    [([0.5, 20.0], 0), ([3e-3], -3), ([9.99e-4], -6), ([9.999e-4], -3), ([4e4], 3), ([0.0, math.nan], 0), ([], 0)],
)
def test_power_of_ten(values, power):
    assert numbers.power_of_ten(values) == power
