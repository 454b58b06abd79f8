"""`headjax inspect`: numbers of a model directory, and heads as ranges."""

import importlib

import pytest

number_list = importlib.import_module("headjax.commands.inspect").number_list


@pytest.mark.parametrize(
    ("numbers", "text"), [((), "none"), ((3,), "3"), ((0, 1, 2, 3, 7), "0-3, 7"), ((1, 3, 4), "1, 3-4")]
)
def test_numbers_are_written_as_ranges(numbers, text):
    assert number_list(numbers) == text
