"""Orders by name, and the share of heads that can go."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from headjax.core.errors import HeadjaxError
from headjax.head_report.curves import CurveConfig, CurvePoint, curve, removable
from headjax.heads import gates as head_gates
from headjax.heads.reconstruction_order import reconstruction_order
from tests import tiny


def test_a_curve_has_known_additions():
    assert CurveConfig.parse("fisher_blocks+rescale").rescale
    assert CurveConfig.parse("importance+normalize").order.normalize
    with pytest.raises(HeadjaxError, match=r"^order: 'random\+mean'"):
        CurveConfig.parse("random+mean")
    with pytest.raises(HeadjaxError, match="one of rescale and reconstruct"):
        CurveConfig.parse("random+rescale+reconstruct")


def points(values):
    """Points of two seeds, whose mean is the value."""
    return [CurvePoint(share, 1, seed, mean + 1 - 2 * seed) for share, mean in values.items() for seed in (0, 1)]


@pytest.mark.parametrize(
    ("higher_is_better", "values", "share"),
    [
        (True, {0.25: 9.5, 0.5: 9.0, 0.75: 8.5}, 0.5),
        (True, {0.25: 8.0, 0.5: 10.0}, 0.0),  # a smaller share already costs too much
        (False, {0.25: 10.5, 0.5: 11.0, 0.75: 11.5}, 0.5),
        (False, {0.25: 9.0, 0.5: 8.0}, 0.5),
    ],
)
def test_heads_can_go_up_to_the_first_share_that_costs_too_much(higher_is_better, values, share):
    assert removable(points(values), 10.0, 1.0, higher_is_better) == share


class Judged:
    """What a curve has asked to judge."""

    def __init__(self):
        self.asked = []

    def __call__(self, model, gates):
        self.asked.append((model, gates))
        return float(gates["decoder"].sum())


def test_kept_heads_of_a_curve_are_solved_anew_until_none_is_left():
    model, judged = tiny.model(tiny.decoder_config()), Judged()
    batches = [tiny.tokens(8, 12, seed) for seed in range(2)]
    config = CurveConfig.parse("reconstruction+reconstruct")
    found = curve(model, config, batches, (50, 100), judged)
    assert [point.value for point in found] == [4.0, 0.0]
    (half, gates), (none_left, _) = judged.asked
    removed = reconstruction_order(model, batches)[:4]
    np.testing.assert_array_equal(gates["decoder"], head_gates.without(model.config, removed)["decoder"])
    changed = jax.tree.map(lambda one, other: bool((one != other).any()), half.params, model.params)
    assert any(jax.tree.leaves(changed["decoder"]["layers_0_1"]["attention"]))
    assert none_left is model
