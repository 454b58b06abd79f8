import math

import numpy as np
import pytest

from headjax.evaluation.paired import mcnemar, paired_bootstrap, t_test


def test_t_test_of_a_worked_example():
    """Changes 1, 2, 3, 4: mean 2.5, standard error sqrt(5/3)/2, t = 3.873 with 3 degrees of freedom."""
    baseline = np.array([5.0, 1.0, 2.0, 7.0])
    got = t_test(baseline, baseline + np.arange(1.0, 5.0))
    assert got.difference == 2.5
    # The distribution function of Student's t with 3 degrees of freedom in closed form.
    t = 2.5 / (math.sqrt(5 / 3) / 2)
    tail = 0.5 - (t / math.sqrt(3) / (1 + t * t / 3) + math.atan(t / math.sqrt(3))) / math.pi
    assert got.p_value == pytest.approx(2 * tail)
    assert got.low < 2.5 < got.high


def test_mcnemar_is_the_exact_binomial():
    """1 gained and 5 lost of 8; for the interval one more each, p = 2/10 and 6/10, difference -4/10."""
    baseline = np.array([1, 1, 1, 1, 1, 0, 1, 0])
    changed = np.array([0, 0, 0, 0, 0, 1, 1, 0])
    got = mcnemar(baseline, changed)
    assert got.difference == pytest.approx(-4 / 8)
    assert got.p_value == pytest.approx(2 * (1 + 6) / 2**6)
    half = 1.959964 * math.sqrt((0.8 - 0.16) / 10)
    assert got[2:] == (pytest.approx(-0.4 - half), pytest.approx(-0.4 + half))


def test_equal_models_are_never_significant():
    values = np.array([0.0, 1.0, 1.0, 0.0])
    for test in (t_test, mcnemar, paired_bootstrap):
        assert test(values, values)[:2] == (0.0, 1.0)


def test_false_alarms_are_as_rare_as_the_level_says():
    generator = np.random.default_rng(0)
    alarms = {"t": 0, "mcnemar": 0, "bootstrap": 0}
    for _ in range(200):
        noise = generator.standard_normal((2, 60))
        alarms["t"] += t_test(*noise).p_value < 0.05
        alarms["mcnemar"] += mcnemar(*(noise > 0).astype(int)).p_value < 0.05
        alarms["bootstrap"] += paired_bootstrap(*noise, resamples=200).p_value < 0.05
    assert all(count <= 22 for count in alarms.values()), alarms
    assert alarms["t"] >= 2


def test_bootstrap_agrees_with_the_t_test_on_means_and_takes_any_corpus_metric():
    generator = np.random.default_rng(1)
    baseline = generator.standard_normal(200)
    changed = baseline + 0.15 + 0.5 * generator.standard_normal(200)
    bootstrap, student = paired_bootstrap(baseline, changed, resamples=2000), t_test(baseline, changed)
    assert bootstrap.difference == pytest.approx(student.difference)
    assert bootstrap.low == pytest.approx(student.low, abs=0.02)
    assert bootstrap.high == pytest.approx(student.high, abs=0.02)
    ratio = paired_bootstrap(
        np.stack([baseline, baseline + 5], axis=1),
        np.stack([changed, changed + 5], axis=1),
        lambda values: values[:, 0].sum() / values[:, 1].sum(),
        resamples=50,
    )
    assert ratio.difference == pytest.approx(
        changed.sum() / (changed + 5).sum() - baseline.sum() / (baseline + 5).sum()
    )
