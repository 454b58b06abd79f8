"""Results print as a few short lines, whatever they hold."""

import numpy as np
import pytest

import headjax
from headjax.heads.learned_gates import LearnedGates
from headjax.heads.reconstruct import LayerRepair, Reconstruction
from headjax.heads.scoring import DESCRIPTIONS, Scores
from headjax.shrinking.choice import Choice, Point, Prices, Shrunk
from tests import tiny

HEADS = tuple(headjax.HeadId(f"some.{'long.' * 9}path.*.attn", layer, head) for layer in range(9) for head in range(99))
MODEL = tiny.model(tiny.decoder_config())
VALUES = dict.fromkeys(HEADS, 0.5)
ARRAY = np.zeros((3, 400))
CHOICE, PRICES = Choice({}, 0.1, 0.1, 0.0, {}), Prices({}, {}, "kl")
REPAIRS = tuple(LayerRepair(f"decoder/{layer}", 12000, 5, 0.1, 0.5, True) for layer in range(64))


@pytest.mark.parametrize(
    "result",
    [
        Scores(dict.fromkeys(DESCRIPTIONS, VALUES), 1.0, 1000, 0.1),
        LearnedGates({"decoder": ARRAY}, HEADS, VALUES, ARRAY),
        Reconstruction(MODEL, HEADS, {}, REPAIRS, 5),
        Shrunk(MODEL, HEADS, CHOICE, (Point("parameters", 0.5, 0.1, {}),) * 40, PRICES),
    ],
    ids=lambda result: type(result).__name__,
)
def test_results_print_as_a_few_short_lines(result):
    name, *lines = str(result).split("\n")
    assert name == type(result).__name__
    assert [line.strip().partition(":")[0] for line in lines] == list(result._fields)
    assert len(lines) < 10
    assert max(map(len, lines)) <= 120
