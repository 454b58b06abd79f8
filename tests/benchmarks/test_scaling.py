"""The scaling benchmark: counts against XLA's, slopes beside the theory's, one factor at a time, and one tiny run."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from benchmarks import operations, scaling
from benchmarks.operations import NEW, OPERATIONS, Operation, Shape, drawn, language_model, tokens
from benchmarks.scaling import CostCurve, Study, slope
from headjax.conversion.decomposition import CP, Damping, sweep
from headjax.conversion.target import Products
from headjax.core.tensors import count
from headjax.heads.program import prepare
from headjax.heads.scoring import batch_sums
from headjax.heads.site import ones

pytestmark = pytest.mark.whole

TINY = Shape(width=8, hidden=16, head_dim=4, heads=2, vocabulary=16, length=8, depth=2)
WIDE = Shape(width=256, hidden=512, head_dim=64, vocabulary=128, length=64, depth=2)
"""Large enough that products of matrices are nearly all operations; it is never computed."""


FLOPS = {
    "train step": operations.training_flops,
    "importance": operations.scoring_flops,
    "ablation": operations.sweeping_flops,
    "conversion": lambda config, shape: operations.conversion_flops(shape),
    "prefill": lambda config, shape: shape.batch * operations.generation_cost(config, shape).prompt,
    "decode step": lambda config, shape: operations.generation_cost(config, shape).step.flops,
}


def growth(name, factor, values=(1, 2, 4, 8)):
    """The theory's slope of an operation over multiples of a factor."""
    shapes = [WIDE._replace(**{factor: value * getattr(WIDE, factor)}) for value in values]
    return slope(values, [FLOPS[name](language_model(shape), shape) for shape in shapes])


def test_theory_over_every_factor():
    assert [growth(name, "batch") for name in FLOPS if name != "conversion"] == pytest.approx([1.0] * 5)
    short, long = growth("train step", "length"), growth("train step", "length", (256, 512, 1024))
    assert 1.0 < short < 1.9 < long < 2.0  # between linear and quadratic
    # A decode step reads the cache once, and its projections do not grow.
    assert 0.0 < growth("decode step", "length") < 1.0
    assert 0.95 < growth("train step", "depth") < 1.0  # logits stay
    assert 0.0 < growth("train step", "heads") < 1.0  # the feed-forward stays
    assert growth("conversion", "depth") == pytest.approx(1.0)
    assert 1.8 < growth("ablation", "depth", (2, 4, 8)) < 2.0


def test_one_head_of_one_layer_is_ablated_by_one_more_forward_pass():
    one = WIDE._replace(depth=1, heads=1)
    assert FLOPS["ablation"](language_model(one), one) == 3 * language_model(one).flops(one.length)


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
    lowered = jax.jit(sweep).lower(Products(factor, factor), CP(wide, mixing, wide), Damping(scalar, scalar))
    cholesky = 4 * rank**3  # calls of LAPACK, which XLA does not count
    expected = operations.least_squares_flops(rows, heads, dim, rank) - cholesky
    assert lowered.cost_analysis()["flops"] == pytest.approx(expected, rel=0.1)


def test_pairs_are_the_quadratic_part_alone():
    attention = language_model(TINY).attention[0]
    assert operations.pair_flops(attention, 8, 8) == 2 * 2 * 2 * 4 * 8 * 8


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


VALUES = (1, 2, 4, 8)


def curve(powers, work=1.0):
    """Costs whose time grows with another power in each turn."""
    seconds = [[0.5 * value**power for power in powers] for value in VALUES]
    return CostCurve(VALUES, seconds, [3.0 * value**work for value in VALUES], [100 * value for value in VALUES])


def test_the_slope_is_that_of_least_squares():
    assert slope(VALUES, [7.0 * value**1.5 for value in VALUES]) == pytest.approx(1.5, abs=1e-12)
    # log2 of the costs: 0, 0, 1, 3 at 0, 1, 2, 3; sum of (x - 1.5)(y - 1) over that of (x - 1.5)^2.
    assert slope(VALUES, [1.0, 1.0, 2.0, 8.0]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("powers", "verdict"),
    [
        ([1.0, 1.05, 1.1], "as counted"),
        ([1.4, 1.5, 1.6], "faster than counted"),
        ([0.4, 0.5, 0.6], "slower than counted"),
        ([0.4, 1.5, 2.5], "as counted"),  # the turns do not agree
    ],
)
def test_a_departure_is_larger_than_the_tolerance_and_the_spread(powers, verdict):
    found = curve(powers)
    assert found.verdict == verdict
    assert found.measured.median == pytest.approx(powers[1])
    assert found.predicted == pytest.approx(1.0)
    assert found.to_json()["memory_slope"] == pytest.approx(1.0)
    assert found.medians == pytest.approx([0.5 * value ** powers[1] for value in VALUES])


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
