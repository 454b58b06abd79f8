"""What a decoding step costs in time."""

from __future__ import annotations

from headjax.conversion import convert
from headjax.core.tensors import count
from headjax.models.speed import DecodingCost, Rates, decoding_cost, peak_rates
from tests.hub.directories import LLAMA, model_of


def test_a_step_takes_the_longer_of_its_operations_and_its_bytes() -> None:
    rates = Rates(flops=100.0, bytes=10.0)
    assert DecodingCost(1000, 50).seconds(rates) == 10.0
    assert DecodingCost(100, 50).seconds(rates) == 5.0
    model = model_of(LLAMA)
    one, two = (decoding_cost(model.config, 8, batch) for batch in (1, 2))
    assert two.flops == 2 * one.flops
    assert 2 * one.bytes - two.bytes == 4 * count(model.config.tensors())
    # A latent whose keys turn does more in a long cache, although it reads less.
    long = [decoding_cost(each.config, 1 << 20) for each in (model, convert(model, "latent:rank=3").model)]
    assert long[1].flops > long[0].flops


def test_rates_are_measured() -> None:
    rates = peak_rates()
    assert 1e8 < rates.flops < 1e16
    assert 1e8 < rates.bytes < 1e14
    assert peak_rates() is rates
