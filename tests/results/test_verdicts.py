"""Verdicts and intervals on made-up data whose truth is known."""

import numpy as np
import pytest
from scipy import stats

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


def test_another_metric_or_an_exact_theorem_is_never_held():
    found = Estimate(0.0, -0.1, 0.1)
    assert verdict(found, Bound(most=1.0), obstacle="BLEU was not measured") == "not decided"
    assert verdict(found, Bound(most=1.0), comparable=False) == "not comparable"


SEEDS, EXAMPLES, TRIALS = 3, 200, 1500
TRUE = 0.3


def drawn(generator, seed_spread, example_spread, noise):
    """Differences of models on the same examples, [seeds, examples], with mean TRUE over both populations."""
    seeds = seed_spread * generator.standard_normal((SEEDS, 1))
    examples = example_spread * generator.standard_normal((1, EXAMPLES))
    return TRUE + seeds + examples + noise * generator.standard_normal((SEEDS, EXAMPLES))


def sample(row):
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
            [sample(row) for row in drawn(generator, seed_spread, example_spread, noise)]
        )
        covered += low <= TRUE <= high
    assert covered / TRIALS >= 0.95


def test_intervals_over_seeds_alone_miss_the_truth_where_examples_are_shared():
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(TRIALS):
        means = drawn(generator, 0.02, 2.0, 0.3).mean(axis=1)
        _, low, high = over_seeds_and_examples([Sample(mean) for mean in means])
        covered += low <= TRUE <= high
    assert covered / TRIALS < 0.7


def test_a_bootstrap_over_three_models_and_their_examples_is_too_narrow():
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        found = drawn(generator, 0.3, 0.5, 0.5)
        rows, columns = generator.integers(0, SEEDS, (300, SEEDS)), generator.integers(0, EXAMPLES, (300, EXAMPLES))
        means = [found[np.ix_(row, column)].mean() for row, column in zip(rows, columns, strict=True)]
        low, high = np.quantile(means, (0.025, 0.975))
        covered += low <= TRUE <= high
    assert covered / 200 < 0.9


def test_intervals_over_seeds_alone_are_students():
    values = [1.0, 2.0, 4.0]
    mean, low, high = over_seeds_and_examples([Sample(value) for value in values])
    expected = stats.ttest_1samp(values, 0.0).confidence_interval()
    np.testing.assert_allclose((mean, low, high), (np.mean(values), *expected))


def test_one_model_keeps_its_own_interval():
    assert over_seeds_and_examples([Sample(1.0, 0.5, 1.2)]) == (1.0, 0.5, 1.2)


def test_equal_models_have_the_interval_over_examples():
    mean, low, high = over_seeds_and_examples([Sample(1.0, 0.5, 1.5)] * 3)
    np.testing.assert_allclose((mean, low, high), (1.0, 0.5, 1.5))


def test_a_share_is_decided_by_the_items_that_are():
    items = [Sample(0.0, -0.5, 0.5), Sample(0.0, -2.0, 2.0), Sample(3.0, 2.0, 4.0), Sample(0.5)]
    assert share(items, Bound(most=1.0)) == (0.75, 0.25, 0.75)
    assert share(items, Bound(most=1.0), exact=True) == (0.75, 0.75, 0.75)
