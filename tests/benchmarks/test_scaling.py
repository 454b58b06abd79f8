"""The scaling benchmark: one factor at a time, slopes beside the theory's, and one tiny run to the end."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks import scaling
from benchmarks.operations import OPERATIONS, Operation, Shape
from benchmarks.scaling import SIZES, Study


@pytest.mark.parametrize("size", SIZES)
def test_every_factor_grows_alone_from_the_base(size):
    study = SIZES[size]
    assert set(study.factors) == {"length", "depth", "heads", "batch"}
    for factor, values in study.factors.items():
        shapes = study.shapes(factor)
        assert shapes[0] == study.base
        assert [getattr(shape, factor) for shape in shapes] == sorted(set(values))
        for shape in shapes:
            assert shape._replace(**{factor: getattr(study.base, factor)}) == study.base


def test_the_full_run_has_the_ranges_of_the_docs():
    factors = SIZES["full"].factors
    assert (factors["length"][0], factors["length"][-1]) == (128, 2048)
    assert (factors["depth"][0], factors["depth"][-1]) == (6, 48)


@pytest.fixture
def pretended(monkeypatch):
    """Operations whose time is made up: length costs its square, the rest what is counted; decoding does not grow."""
    clock = [0.0]
    monkeypatch.setattr("headjax.core.timing.time.perf_counter", lambda: clock[0])

    def operation(name):
        def of(shape: Shape) -> Operation:
            work = shape.length * shape.depth * shape.heads * shape.batch
            seconds = 1.0 if name == "decode step" else work * (shape.length if name == "train step" else 1)

            def call():
                clock[0] += seconds

            return Operation(call, float(work), 8 * work)

        return of

    monkeypatch.setattr(scaling, "OPERATIONS", {name: operation(name) for name in OPERATIONS})


def test_slopes_stand_beside_the_theorys_and_departures_are_named(pretended):
    found = scaling.run(size="short")
    curves = found.ours["curves"]
    assert curves["train step"]["length"]["slope"]["median"] == pytest.approx(2.0)
    assert curves["train step"]["length"]["predicted_slope"] == pytest.approx(1.0) == found.peer["train step"]["length"]
    assert curves["train step"]["batch"]["departs"] is False
    assert curves["decode step"]["depth"]["slope"]["median"] == pytest.approx(0.0)
    assert set(curves["conversion"]) == {"depth", "heads"}
    assert found.ratio == pytest.approx(2.0)
    (table,) = found.tables
    grows = {(row[0], row[1].split()[0]): row[7] for row in table.rows}
    assert grows["train step", "length"] == "faster than counted"
    assert grows["train step", "depth"] == "as counted"
    assert grows["decode step", "batch"] == "slower than counted"
    assert found.plot is not None
    assert "train step: length 32 to 128: time 16 times, work 4 times, departs" in found.plot.alt


def test_table_and_plot_are_drawn_from_the_json_alone(pretended):
    found = scaling.run(size="short")
    read = json.loads(json.dumps(found.ours))
    assert dataclasses.asdict(scaling.table(read))["rows"] == dataclasses.asdict(found.tables[0])["rows"]
    assert found.plot is not None
    assert scaling.plot(read).alt == found.plot.alt


def test_a_decode_step_is_a_part_of_its_call(pretended, monkeypatch):
    one = scaling.measure_curve(SIZES["short"], "prefill", "batch", {}).medians
    whole = scaling.OPERATIONS["prefill"]
    many = {"prefill": lambda shape: whole(shape)._replace(steps=4)}
    monkeypatch.setattr(scaling, "OPERATIONS", many)
    assert scaling.measure_curve(SIZES["short"], "prefill", "batch", {}).medians == pytest.approx([s / 4 for s in one])


@pytest.mark.whole
def test_a_tiny_run_to_the_end():
    base = Shape(width=8, hidden=16, head_dim=4, heads=2, vocabulary=16, length=8, depth=1)
    factors = {"length": (8, 16), "depth": (1, 2), "heads": (2, 4), "batch": (1, 2)}
    found = scaling.run(study=Study(base, factors, turns=2))
    assert len(found.tables[0].rows) == 6 * 4 - 2
    for by_factor in found.ours["curves"].values():
        for curve in by_factor.values():
            assert all(seconds > 0 for turns in curve["seconds"] for seconds in turns)
            assert curve["memory"][-1] > curve["memory"][0] > 0
