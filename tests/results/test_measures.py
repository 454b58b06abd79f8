"""Verdicts, intervals and numbers of claims, on made-up results whose truth is known."""

import numpy as np
import pytest
from scipy import stats

from results import table
from results.measures import ClaimRow, measure
from results.table import Row, read, write
from results.verdicts import NORMAL, Bound, Estimate, Sample, over_seeds_and_examples, share, verdict


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.1, 0.9, "held"),
        (0.9, 1.0, "held"),
        (0.1, 1.1, "not decided"),
        (1.1, 2.0, "did not hold"),
        (np.nan, np.nan, "not decided"),
    ],
)
def test_a_bound_is_judged_by_the_whole_interval(low, high, expected):
    assert verdict(Estimate(0.5, low, high), Bound(most=1.0)) == expected
    assert verdict(Estimate(-0.5, -high, -low), Bound(least=-1.0)) == expected


SEEDS, EXAMPLES, TRIALS = 3, 200, 1500
TRUE = 0.3


def drawn(generator, seed_spread, example_spread, noise):
    """Differences of models on the same examples, [seeds, examples], with mean TRUE over both populations."""
    seeds = seed_spread * generator.standard_normal((SEEDS, 1))
    examples = example_spread * generator.standard_normal((1, EXAMPLES))
    return TRUE + seeds + examples + noise * generator.standard_normal((SEEDS, EXAMPLES))


def sample_of(row):
    half = NORMAL * row.std(ddof=1) / np.sqrt(len(row))
    return Sample(row.mean(), row.mean() - half, row.mean() + half)


@pytest.mark.parametrize(
    ("seed_spread", "example_spread", "noise"), [(0.1, 1.0, 1.0), (0.0, 2.0, 0.5), (0.3, 0.5, 0.5), (0.05, 0.0, 1.0)]
)
def test_intervals_cover_the_truth_for_new_seeds_and_new_examples(seed_spread, example_spread, noise):
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(TRIALS):
        _, low, high = over_seeds_and_examples(
            [sample_of(row) for row in drawn(generator, seed_spread, example_spread, noise)]
        )
        covered += low <= TRUE <= high
    assert covered / TRIALS >= 0.95


STUDENT = stats.ttest_1samp([1.0, 2.0, 4.0], 0.0).confidence_interval()


@pytest.mark.parametrize(
    ("samples", "interval"),
    [
        ([Sample(1.0), Sample(2.0), Sample(4.0)], (7 / 3, *STUDENT)),  # over seeds alone
        ([Sample(1.0, 0.5, 1.2)], (1.0, 0.5, 1.2)),  # one model keeps its own
        ([Sample(1.0, 0.5, 1.5)] * 3, (1.0, 0.5, 1.5)),  # equal models have the one over examples
    ],
)
def test_intervals_over_seeds_and_examples(samples, interval):
    np.testing.assert_allclose(over_seeds_and_examples(samples), interval)


def test_a_share_is_decided_by_the_items_that_are():
    items = [Sample(0.0, -0.5, 0.5), Sample(0.0, -2.0, 2.0), Sample(3.0, 2.0, 4.0), Sample(0.5)]
    assert share(items, Bound(most=1.0)) == (0.75, 0.25, 0.75)
    assert share(items, Bound(most=1.0), exact=True) == (0.75, 0.75, 0.75)


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    """A folder for made-up results of an experiment called `mine`."""
    monkeypatch.setattr(table, "FOLDER", tmp_path)
    monkeypatch.setattr("results.measures.document", lambda: {"experiments": {"mine": {"examples": "872 sentences"}}})
    read.cache_clear()
    yield lambda *rows: write("mine", rows, tmp_path)
    read.cache_clear()


def claimed(**fields):
    return measure(ClaimRow(**{"setting": "s", "data": "mine", "metric": "m", "where": {}, "form": "number"} | fields))


def test_losses_of_one_model_have_its_interval_over_examples(results):
    results(Row(metric="accuracy change", value=-0.02, low=-0.03, high=0.01))
    found = claimed(metric="accuracy change", form="points lost", most=3.0)
    assert found.text == "2.00 (-1.00 to 3.00) points lost, 872 sentences"
    assert found.verdict == "held"
    open_ = claimed(metric="accuracy change", form="points lost", most=2.9)
    assert (found.needed, open_.verdict, open_.needed) == ("", "not decided", "±0.90")  # 2.0 +- 0.9 would be held


def test_losses_of_several_models_cover_seeds_and_examples(results):
    results(*(Row(seed=str(seed), metric="c", value=-value) for seed, value in enumerate((0.01, 0.02, 0.03))))
    assert claimed(metric="c", form="points lost").text == "2.00 (-0.48 to 4.48) points lost, 3 seeds"
    results(
        *(
            Row(seed=str(seed), metric="c", value=-value, low=-value - 0.03, high=-value + 0.03)
            for seed, value in enumerate((0.01, 0.02, 0.03))
        )
    )
    read.cache_clear()
    found = claimed(metric="c", form="points lost")
    assert found.text == "2.00 (-1.89 to 5.89) points lost, 3 seeds x 872 sentences"  # root of 2.48^2 + 3^2


def test_runs_are_paired_by_seed_not_by_position(results):
    one = [Row("one", str(seed), metric="bleu", value=10.0 * seed + 1) for seed in (2, 0, 1)]
    other = [Row("other", str(seed), metric="bleu", value=10.0 * seed) for seed in (0, 1, 2, 3)]
    results(*one, *other)
    found = claimed(metric="bleu", where={"setting": "one"}, against={"setting": "other"}, form="BLEU", least=0.5)
    assert found.text == "11.00 against 10.00: +1.00 (+1.00 to +1.00) BLEU, 3 seeds"
    assert found.verdict == "held"


def test_a_difference_of_two_changes_is_no_surer_than_both(results):
    results(
        Row(order="a", metric="m", value=1.0, low=0.7, high=1.3),
        Row(order="b", metric="m", low=-0.4, high=0.4, value=0),
    )
    found = claimed(where={"order": "a"}, against={"order": "b"}).estimate
    assert (found.low, found.high) == pytest.approx((0.5, 1.5))


def test_shares_count_what_is_sure_and_what_is_possible(results):
    rows = [(-0.02, 0.0), (0.0, 0.005), (0.02, 0.03)]
    results(
        *(Row(head=f"e/{i}/0", metric="m", value=-(a + b) / 2, low=-b, high=-a) for i, (a, b) in enumerate(rows)),
        Row(head="e/3/0", metric="m", value=0.0),
    )
    found = claimed(measure="share", form="points lost", within=1.0, least=0.75, what="heads")
    assert found.text == "3 of 4 heads; surely 2, possibly 3"
    assert found.verdict == "not decided"
    assert claimed(measure="share", form="points lost", within=1.0, least=0.5).verdict == "held"
    assert claimed(measure="share", form="points lost", within=1.0, least=0.8).verdict == "did not hold"


def test_effects_on_two_data_sets_correlate(results):
    effects = {"own": (1.0, 2.0, 3.0, 4.0, 5.0), "near": (1.1, 2.0, 3.2, 3.9, 5.0)}
    results(
        *(
            Row(name, seed, head=f"e/0/{i}", metric="m", value=value)
            for name, values in effects.items()
            for seed in "01"
            for i, value in enumerate(values)
        )
    )
    found = claimed(measure="correlation", where={"setting": "own"}, against={"setting": "near"}, least=0.0)
    assert found.text.startswith("r = 1.00 (")
    assert found.text.endswith("2 seeds x 5 heads")
    assert found.verdict == "held"
