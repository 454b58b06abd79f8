"""Seconds of options: positive and in the right order whatever the noise, and those of the original model in sum."""

import numpy as np
import pytest

import headjax
from headjax.shrinking.choice import NO_LAYER, choose, least_cost
from headjax.shrinking.measure import measure
from headjax.shrinking.prices import Part, prices_of
from headjax.storage.files import Kept
from tests import tiny

BATCH = tiny.tokens(16, 12, 0)
GRID = headjax.SearchSpace(
    heads=(0.5, 0.0), units=(0.5, 0.05), cached=(headjax.SubLayerSize(1.0, "grouped", 0.5),), others=()
)
REST = 0.5


@pytest.fixture(scope="module")
def model():
    return tiny.model(tiny.decoder_config(tiny.layer(), tiny.layer(), tiny.layer()))


@pytest.fixture(scope="module")
def measured(model):
    return measure(model, [BATCH], headjax.MeasureConfig(space=GRID, examples=16))


def true_seconds(part: Part) -> float:
    """Seconds on a machine on which sub-layers take what they have of heads, key and value heads and units."""

    def attention(form):
        return 0.1 + form.num_heads + 0.5 * len(set(form.groups))

    layers = part.config.stacks()["decoder"].layers
    of = {"attention": lambda layer: attention(layer.attention), "feed_forward": lambda layer: layer.hidden / 8}
    if part.slot == "rest":
        return REST
    slots = of if part.slot == "model" else {part.slot: of[part.slot]}
    return REST * (part.slot == "model") + sum(seconds(layer) for seconds in slots.values() for layer in layers)


class Loaded:
    """A clock of a machine whose load wanders from call to call, and that is interrupted now and then."""

    def __init__(self, seed: int, noise: float) -> None:
        self.random, self.noise, self.load = np.random.default_rng(seed), noise, 0.0

    def __call__(self, parts):
        turns = {name: [] for name in parts}
        for _ in range(9):
            for name, part in parts.items():
                self.load = 0.9 * self.load + self.noise * self.random.normal()
                interrupted = 5.0 if self.random.random() < 0.5 * self.noise else 1.0
                turns[name].append(true_seconds(part) * float(np.exp(self.load)) * interrupted)
        return turns


def timed(model, measured, clock):
    return prices_of(model, measured, "kl", 12, Kept(), clock)


@pytest.mark.whole
def test_without_noise_an_option_takes_its_own_seconds(model, measured):
    table = timed(model, measured, Loaded(0, 0.0))
    whole, half, none, grouped, gone = (option.latency for option in table.options["decoder/1"])
    assert gone == 0.0
    assert [half / whole, none / whole, grouped / whole] == pytest.approx([3.1 / 6.1, 0.1 / 6.1, 5.1 / 6.1])
    assert table.whole("latency") == pytest.approx(true_seconds(Part(model.config, "model")))
    assert table.parts == pytest.approx(table.whole("latency"))
    assert table.rest["latency"] == pytest.approx(REST)


@pytest.mark.parametrize("seed", range(6))
def test_noise_makes_no_time_negative_and_leaves_the_order(model, measured, seed):
    """Savings of single options, subtracted from the whole, are negative under this noise."""
    clock = Loaded(seed, 0.25)
    table = timed(model, measured, clock)
    for own in table.options.values():
        assert min(option.latency for option in own if option.kind != NO_LAYER) > 0.0
    for number in range(3):
        order = sorted(table.options[f"decoder/{number}"], key=lambda option: option.latency)
        assert [option.level for option in order] == ["no layer", "heads 0", "heads 0.5", "heads 1 grouped 0.5", ""]
        order = sorted(table.options[f"decoder/{number}/feed_forward"], key=lambda option: option.latency)
        assert [option.units for option in order] == [0, 2, 16, 32]
    assert REST / 2 < least_cost(table, "latency") < 0.5 * table.whole("latency")
    choice = choose(table, {"latency": 0.6 * table.whole("latency")})
    assert 0.0 < choice.costs["latency"] <= 0.6 * table.whole("latency")
