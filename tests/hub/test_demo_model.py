"""The decoder that headjax carries: small, as its card says, and in need of its heads."""

import hashlib
import importlib.resources
import random
import re

import pytest

import headjax

DEMO = importlib.resources.files("headjax") / "hub" / "demo"
CARD = (DEMO / "README.md").read_text()
BLOCKS = 16


def bits(name):
    """Bits per byte on the whole held-out text, as the model card says."""
    return float(re.search(rf"\| {name} \|.*\| ([\d.]+) \|", CARD)[1])


def test_it_is_small_and_its_card_names_these_weights():
    weights = DEMO / "model.safetensors"
    assert sum(file.stat().st_size for file in DEMO.iterdir()) < 3e6
    assert hashlib.sha256(weights.read_bytes()).hexdigest() in CARD
    assert 1e6 < headjax.demo_model().num_parameters < 3e6


@pytest.mark.whole
def test_it_is_as_good_as_its_card_says_and_importance_tells_which_heads_it_needs():
    """All heads removed costs 30 % or more; the less important half costs less than half of a random half's cost."""
    model = headjax.demo_model()
    task = headjax.load_task("python_code", model, length=256)
    found = headjax.measure_task(model, task, limit=BLOCKS)
    assert found.metrics["bits_per_byte"] == pytest.approx(bits("this model"), rel=0.2)

    def loss(removed):
        return headjax.evaluate_task(headjax.gated(model, dict.fromkeys(removed, 0.0)), task, BLOCKS)["loss"]

    score = headjax.score_heads(model, task.sample(64, 8), statistics=()).score("importance_layer")
    order = sorted(score, key=score.__getitem__)
    half, whole = len(order) // 2, found.metrics["loss"]
    heads = headjax.all_heads(model.config)
    at_random = [loss(random.Random(seed).sample(heads, half)) for seed in range(3)]
    assert loss(order) > 1.3 * whole
    assert loss(order[:half]) - whole < 0.5 * (sum(at_random) / 3 - whole)
