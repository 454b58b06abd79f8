"""The decoder that headjax carries: small, better than counts, and in need of its heads."""

import hashlib
import re

import pytest

from headjax.evaluation.task import evaluate
from headjax.heads.ordering import by_scores, random_order
from headjax.heads.scores import score_heads
from headjax.quickstart.settings import training
from headjax.quickstart.text import FOLDER, Text, batches, demo_model
from headjax.training.config import train_config

pytestmark = pytest.mark.whole


CARD = (FOLDER / "README.md").read_text()


def bits():
    """Bits per byte on the whole held-out text, as the model card says."""
    return {name: float(value) for name, value in re.findall(r"\| (\w+ \w+) \|.*\| ([\d.]+) \|", CARD)}


@pytest.fixture(scope="module")
def model():
    return demo_model()


@pytest.fixture(scope="module")
def text(model):
    return Text(train_config(training("standard", steps=1)).data.load(model.tokenizer))


def test_it_is_small_and_its_card_names_these_weights(model):
    weights = FOLDER / "model.safetensors"
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 3e6
    assert 1e6 < model.num_parameters < 3e6
    assert hashlib.sha256(weights.read_bytes()).hexdigest() in CARD
    assert bits()["this model"] < 0.95 * bits()["trigram counts"]


def test_it_beats_trigram_counts_on_files_it_has_not_seen(model, text):
    assert text.bits(evaluate(model, batches(text.held_out))["loss"]) < 0.95 * bits()["trigram counts"]


def test_its_heads_matter_and_importance_tells_which(model, text):
    """All heads removed costs 30 % or more; the less important half costs less than half of a random half's cost."""
    order = by_scores(score_heads(model, batches(text.training_blocks(64)), statistics=()), "importance")
    half = len(order) // 2
    whole, least, none = (text.measure(model, order[:count])[0] for count in (0, half, len(order)))
    at_random = [text.measure(model, random_order(model.config, seed)[:half])[0] for seed in range(3)]
    assert none > 1.3 * whole
    assert least - whole < 0.5 * (sum(at_random) / 3 - whole)
