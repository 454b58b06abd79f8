"""Slopes of cost curves: exact for powers, one a turn, and told apart from the theory's only beyond their spread."""

from __future__ import annotations

import json

import pytest

from benchmarks.slopes import CostCurve, slope

VALUES = (1, 2, 4, 8)


def curve(powers, work=1.0):
    """Costs whose time grows with another power in each turn."""
    seconds = tuple(tuple(0.5 * value**power for power in powers) for value in VALUES)
    return CostCurve(VALUES, seconds, tuple(3.0 * value**work for value in VALUES), tuple(100 * v for v in VALUES))


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5, 2.0])
def test_the_slope_of_a_power_is_exact(power):
    assert slope(VALUES, [7.0 * value**power for value in VALUES]) == pytest.approx(power, abs=1e-12)


def test_the_slope_is_that_of_least_squares():
    # log2 of the costs: 0, 0, 1, 3 at 0, 1, 2, 3; sum of (x - 1.5)(y - 1) over that of (x - 1.5)^2.
    assert slope(VALUES, [1.0, 1.0, 2.0, 8.0]) == pytest.approx(1.0)


def test_turns_give_median_and_quartiles():
    found = curve([1.0, 1.1, 1.2, 1.3, 1.4])
    assert found.measured == pytest.approx((1.2, 1.1, 1.3))
    assert found.predicted == pytest.approx(1.0)
    assert found.memory_slope == pytest.approx(1.0)
    assert found.medians == pytest.approx([0.5 * value**1.2 for value in VALUES])


@pytest.mark.parametrize(
    ("powers", "departs"),
    [
        ([1.0, 1.05, 1.1], False),
        ([1.4, 1.5, 1.6], True),
        ([0.4, 0.5, 0.6], True),
        ([0.4, 1.5, 2.5], False),  # the turns do not agree
    ],
)
def test_a_departure_is_larger_than_the_tolerance_and_the_spread(powers, departs):
    assert curve(powers).departs == departs


def test_a_curve_comes_back_from_its_json():
    found = curve([1.0, 1.2, 1.3])
    data = json.loads(json.dumps(found.to_json()))
    assert CostCurve.from_json(data) == found
    assert data["slope"]["median"] == pytest.approx(1.2)
    assert {"values", "seconds", "flops", "memory", "predicted_slope", "memory_slope", "departs"} <= set(data)
