"""The largest batch that fits: how near, and in how many compilations."""

import pytest

from headjax.plan.largest_batch import largest_batch
from headjax.plan.plan import Plan, plan_config
from tests.plan.test_plan import data


def plan_of(batch, peak):
    """What the compiler says of a batch on devices with 1000 bytes."""
    return Plan("v5e-8", 8, batch, 16, "none", 1, "rbg", peak <= 1000, int(peak), 1000, 0.0, {}, 0.0, None)


@pytest.mark.parametrize(
    "needed, most, attempts",
    [
        (lambda batch: 100 + batch, 896, 5),  # memory grows by a line, as activations do
        (lambda batch: 100 + batch // 64 * 64, 896, 6),
        (lambda batch: 100 + batch**2 / 100, 296, 6),
        (lambda batch: 990 + batch, 8, 4),  # the config's own batch does not fit
    ],
)
def test_the_largest_batch_is_found_to_one_part_in_eight(needed, most, attempts, eight_devices):
    tried = []

    def planned(config, where):
        tried.append(config.batch_size)
        return plan_of(config.batch_size, needed(config.batch_size))

    best = largest_batch(plan_config(data()), eight_devices, planned)
    assert best.fits
    assert most / (1 + 1 / 8) <= best.batch_size <= most
    assert all(batch % 8 == 0 for batch in tried)
    assert len(tried) == len(set(tried)) <= attempts


def test_where_no_batch_fits_there_is_no_largest(eight_devices):
    assert largest_batch(plan_config(data()), eight_devices, lambda config, where: plan_of(8, 2000)) is None
