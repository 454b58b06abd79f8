"""Building: every layer gets what was chosen for it."""

from __future__ import annotations

import pytest

from headjax import HeadjaxError, reconstruct
from headjax.heads.units import count_units
from tests import tiny

BATCHES = [tiny.tokens(16, 12, seed) for seed in range(2)]


@pytest.fixture(scope="module")
def model():
    return tiny.model(tiny.decoder_config(tiny.layer(), tiny.layer(), tiny.layer()))


def test_every_feed_forward_can_lose_units_of_its_own_number(model):
    found = reconstruct(model, BATCHES, (), units={("decoder", 0): 20, ("decoder", 2): 5})
    assert count_units(found.model) == {("decoder", 0): 12, ("decoder", 1): 32, ("decoder", 2): 27}
    with pytest.raises(HeadjaxError, match="units: decoder/1"):
        reconstruct(model, BATCHES, (), units={("decoder", 1): 32})
