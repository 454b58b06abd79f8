"""`headjax inspect`: numbers of a model directory, and heads as ranges."""

import importlib
import json

import pytest

from headjax.cli import main
from headjax.models.model import load

number_list = importlib.import_module("headjax.commands.inspect").number_list


def test_a_model_directory(folder, capsys):
    assert main(["inspect", str(folder / "model"), "--length", "32", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["parameters"] == load(folder / "model").num_parameters
    assert data["heads"] == 4
    assert len(data["layers"]) == 2


def test_a_model_or_a_config(folder, capsys):
    assert main(["inspect", str(folder / "model"), "--config", "config.py"]) == 2
    assert "inspect: give a model directory or --config" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("numbers", "text"), [((), "none"), ((3,), "3"), ((0, 1, 2, 3, 7), "0-3, 7"), ((1, 3, 4), "1, 3-4")]
)
def test_numbers_are_written_as_ranges(numbers, text):
    assert number_list(numbers) == text
