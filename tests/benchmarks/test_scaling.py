"""The scaling benchmark: counts against XLA's, slopes beside the theory's, one factor at a time, and one tiny run."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from benchmarks import operations, scaling
from benchmarks.operations import NEW, OPERATIONS, Operation, Shape, drawn, language_model, tokens
from benchmarks.scaling import Study
from headjax.conversion.collaborative import CP, sweep
from headjax.conversion.target import Products
from headjax.core.tensors import count
from headjax.heads.program import prepare
from headjax.heads.scoring import batch_sums
from headjax.heads.site import ones

pytestmark = pytest.mark.whole

TINY = Shape(width=8, hidden=16, head_dim=4, heads=2, vocabulary=16, length=8, depth=2)
WIDE = Shape(width=256, hidden=512, head_dim=64, vocabulary=128, length=64, depth=2)
"""Large enough that products of matrices are nearly all operations; it is never computed."""


def test_the_count_of_scoring_is_xlas():
    shape = WIDE._replace(depth=1)  # of a scan over layers XLA counts one
    config = language_model(shape)
    program, state = prepare(drawn(config), None)
    lowered = batch_sums.lower(program, (), state, ones(program.sites), program.read(tokens(shape)))
    # Below the first layer's gates nothing is differentiated: XLA has less by that layer's projections and pairs.
    first, width, length = config.attention[0], shape.width, shape.length
    pairs = operations.pair_flops(first, width, length)
    below = 0.75 * (first.module(width, width).flops(length, length) - pairs) + 2 * pairs
    expected = operations.scoring_flops(config, shape) - below
    assert lowered.cost_analysis()["flops"] == pytest.approx(expected, rel=0.1)


def test_the_count_of_least_squares_is_xlas():
    rows, heads, dim, rank = 256, 8, 32, 64
    factor = jax.ShapeDtypeStruct((rows, heads, dim), jnp.float32)
    wide, mixing = (jax.ShapeDtypeStruct((size, rank), jnp.float32) for size in (rows, heads))
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    lowered = jax.jit(sweep).lower(Products(factor, factor), CP(wide, mixing, wide), scalar, scalar)
    cholesky = 4 * rank**3  # calls of LAPACK, which XLA does not count
    expected = operations.least_squares_flops(rows, heads, dim, rank) - cholesky
    assert lowered.cost_analysis()["flops"] == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_runs_and_tells_its_memory(name):
    operation = OPERATIONS[name](TINY)
    for _ in range(2):  # training and generation use up what they are given
        if operation.before is not None:
            operation.before()
        jax.block_until_ready(operation.call())
    weights = 4 * count(language_model(TINY).tensors())
    queries_and_keys = 4 * 2 * 2 * 8 * 8
    assert operation.memory > (queries_and_keys if name == "conversion" else weights)
    assert operation.flops > 0
    assert operation.steps == (NEW if name == "decode step" else 1)


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
    # The pages draw them again from the JSON alone.
    read = json.loads(json.dumps(found.ours))
    assert dataclasses.asdict(scaling.table(read))["rows"] == dataclasses.asdict(table)["rows"]
    assert scaling.plot(read).alt == found.plot.alt


def test_a_tiny_run_to_the_end():
    found = scaling.run(study=Study(TINY._replace(depth=1), {"length": (8, 16), "depth": (1, 2)}, turns=2))
    assert len(found.tables[0].rows) == 6 * 2 - 1
    for by_factor in found.ours["curves"].values():
        for curve in by_factor.values():
            assert all(seconds > 0 for turns in curve["seconds"] for seconds in turns)
            assert curve["memory"][-1] > curve["memory"][0] > 0
