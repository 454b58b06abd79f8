import numpy as np
import pytest

from headjax.heads.refit import RefitSums, centred, least_needed, nested_refits, refit, without_features

GENERATOR = np.random.default_rng(0)
FEATURES, WIDTH = 6, 3


def sums(features, lacking):
    """The sums over two halves of tokens: even and odd rows."""
    x = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    halves = [(x[i::2], lacking[i::2]) for i in (0, 1)]
    return RefitSums(
        np.stack([a.T @ a for a, _ in halves]),
        np.stack([a.T @ b for a, b in halves]),
        np.stack([(b**2).sum(axis=0) for _, b in halves]),
    )


@pytest.mark.parametrize("bias", [True, False])
def test_the_change_is_that_of_numpys_least_squares(bias):
    features = GENERATOR.standard_normal((80, FEATURES)) + 1.0
    lacking = GENERATOR.standard_normal((80, WIDTH)) + features @ GENERATOR.standard_normal((FEATURES, WIDTH))
    kept = np.array([True, True, False, True, False, True])
    x = np.concatenate([features[:, kept], np.ones((80, int(bias)))], axis=1)
    expected = np.linalg.lstsq(x, lacking, rcond=None)[0]
    found = refit(sums(features, lacking), kept, bias=bias, scale=np.ones(WIDTH), ridges=(1e-12,))
    np.testing.assert_allclose(found.change.weight[kept], expected[:4], rtol=1e-8)
    np.testing.assert_array_equal(found.change.weight[~kept], 0.0)
    np.testing.assert_allclose(found.change.bias, expected[4] if bias else np.zeros(WIDTH), rtol=1e-8)
    assert found.unknowns == 4 + bias


def test_the_ridge_is_a_penalty_on_the_change():
    """Rows sqrt(penalty) I with a target of 0, in numpy's least squares."""
    features, lacking = GENERATOR.standard_normal((40, FEATURES)), GENERATOR.standard_normal((40, WIDTH))
    found = refit(sums(features, lacking), np.ones(FEATURES, bool), bias=False, scale=np.ones(WIDTH), ridges=(0.5,))
    penalty = 0.25 * np.square(features).sum() / FEATURES
    rows = np.concatenate([features, np.sqrt(penalty) * np.eye(FEATURES)])
    targets = np.concatenate([lacking, np.zeros((FEATURES, WIDTH))])
    np.testing.assert_allclose(found.change.weight, np.linalg.lstsq(rows, targets, rcond=None)[0], rtol=1e-8)


@pytest.mark.parametrize("bias", [True, False])
def test_what_removed_features_computed_joins_the_target(bias):
    features, weight = GENERATOR.standard_normal((60, FEATURES)) + 1.0, GENERATOR.standard_normal((FEATURES, WIDTH))
    lacking, kept = GENERATOR.standard_normal((60, WIDTH)), np.array([True, False, True, True, False, True])
    found = refit(sums(features, lacking), kept, bias=bias, scale=np.ones(WIDTH), weight=weight)
    lacking = lacking + features[:, ~kept] @ weight[~kept]
    expected = refit(sums(features, lacking), kept, bias=bias, scale=np.ones(WIDTH))
    assert found.ridge == expected.ridge
    assert found.held_out == pytest.approx(expected.held_out)
    for mine, other in zip(found.change, expected.change, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("penalty", [1e-6, 30.0])
def test_every_size_of_one_factorisation_is_a_least_squares_of_its_own(penalty):
    """Rows sqrt(penalty) I with the present map as their target, in numpy's least squares."""
    features, weight = correlated(FEATURES), GENERATOR.standard_normal((FEATURES, WIDTH))
    order, sizes = GENERATOR.permutation(FEATURES), [6, 4, 3, 1, 0]
    for size, change in zip(sizes, nested_refits(features.T @ features, weight, order, sizes, penalty), strict=True):
        kept, expected = order[:size], np.zeros((FEATURES, WIDTH))
        rows = np.concatenate([features[:, kept], np.sqrt(penalty) * np.eye(size)])
        target = np.concatenate([features @ weight, np.sqrt(penalty) * weight[kept]])
        expected[kept] = np.linalg.lstsq(rows, target, rcond=None)[0]
        np.testing.assert_allclose(weight + change, expected, rtol=1e-6, atol=1e-8)


def test_moments_that_rounding_made_indefinite_are_solved_with_more_of_a_penalty():
    features, weight = correlated(FEATURES)[:4], GENERATOR.standard_normal((FEATURES, WIDTH))
    moments = features.T @ features - 1e-3 * np.eye(FEATURES)  # of rank 4, two eigenvalues of -1e-3
    for change in nested_refits(moments, weight, np.arange(FEATURES), [6, 3], 1e-9):
        assert np.abs(weight + change).max() < 10.0 * np.abs(weight).max()
    assert sorted(least_needed(moments - moments.trace() * np.eye(FEATURES), weight, FEATURES)) == list(range(FEATURES))


def test_the_held_out_error_is_measured_on_the_other_half_and_chooses_the_ridge():
    features = GENERATOR.standard_normal((24, FEATURES))
    lacking = 0.3 * features @ GENERATOR.standard_normal((FEATURES, WIDTH)) + GENERATOR.standard_normal((24, WIDTH))
    scale = np.array([1.0, 0.0, 2.0])
    collected, kept = sums(features, lacking), np.ones(FEATURES, bool)
    ratios = {}
    for ridge in (1e-9, 1.0, 100.0):
        error = 0.0
        for solved, judged in ((0, 1), (1, 0)):
            x, y = features[solved::2], lacking[solved::2]
            penalty = ridge * np.square(x).sum() / FEATURES
            weight = np.linalg.solve(x.T @ x + penalty * np.eye(FEATURES), x.T @ y)
            error += float((np.square(lacking[judged::2] - features[judged::2] @ weight) @ scale**2).sum())
        ratios[ridge] = error / float((np.square(lacking) @ scale**2).sum())
        alone = refit(collected, kept, bias=False, scale=scale, ridges=(ridge,))
        assert alone.held_out == pytest.approx(ratios[ridge])
        assert alone.helps is (ratios[ridge] < 1.0)
    chosen = refit(collected, kept, bias=False, scale=scale, ridges=tuple(ratios))
    assert chosen.ridge == min(ratios, key=ratios.get)


def left_over(features, weight, kept):
    """Mean squared error of features W once the kept rows have been solved anew, by numpy's least squares."""
    target = features @ weight
    return np.square(target - features[:, kept] @ np.linalg.lstsq(features[:, kept], target, rcond=None)[0]).sum()


def correlated(count):
    return GENERATOR.standard_normal((200, count)) @ GENERATOR.standard_normal((count, count))


def test_one_at_a_time_the_least_needed_feature_is_found_by_trying_each():
    features, weight = correlated(7), GENERATOR.standard_normal((7, WIDTH))
    kept = list(range(7))
    for feature in least_needed(features.T @ features, weight, 4, steps=4):
        errors = {one: left_over(features, weight, [k for k in kept if k != one]) for one in kept}
        assert feature == min(errors, key=errors.get)
        kept.remove(feature)


def test_groups_of_features_go_by_the_inverse_of_what_is_left():
    """Twelve of twenty, in groups of three, with the inverse and the map of the others computed anew each time."""
    features, weight = correlated(20), GENERATOR.standard_normal((20, WIDTH))
    left, expected, moments = np.arange(20), [], features.T @ features
    for _ in range(4):
        inverse = np.linalg.inv(moments[np.ix_(left, left)])
        solved = np.linalg.lstsq(features[:, left], features @ weight, rcond=None)[0]
        group = left[np.argsort(np.square(solved).sum(axis=1) / np.diag(inverse))[:3]]
        expected, left = [*expected, *group], np.setdiff1d(left, group)
    assert least_needed(moments, weight, 12, steps=4).tolist() == expected


def test_downdates_equal_the_inverse_of_what_is_left():
    features, weight = correlated(6), GENERATOR.standard_normal((6, WIDTH))
    moments, rows, kept = features.T @ features, np.array([1, 4]), [0, 2, 3, 5]
    inverse, solved = without_features(np.linalg.inv(moments), weight, rows)
    np.testing.assert_allclose(inverse[np.ix_(kept, kept)], np.linalg.inv(moments[np.ix_(kept, kept)]), rtol=1e-6)
    expected = np.linalg.lstsq(features[:, kept], features @ weight, rcond=None)[0]
    np.testing.assert_allclose(solved[kept], expected, rtol=1e-6)
    assert not solved[rows].any()
    assert not inverse[rows].any()


@pytest.mark.parametrize("bias", [True, False])
def test_second_moments_are_about_the_mean_where_a_bias_takes_it_up(bias):
    features = GENERATOR.standard_normal((30, FEATURES)) + 1.0
    moved = features - features.mean(axis=0) if bias else features
    gram = sums(features, features[:, :WIDTH]).gram.sum(axis=0)
    np.testing.assert_allclose(centred(gram, bias)[0], moved.T @ moved / 30, rtol=1e-9)
