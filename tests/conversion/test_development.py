"""Conversions of a trained decoder that needs its heads, judged by its loss on text that they were not fitted on."""

import math

import numpy as np
import pytest

import headjax
from headjax.conversion.calibration import calibrate
from headjax.data.files import library_sources
from headjax.data.rows import hold_out_files
from results.experiments.development import LENGTH, decoder

pytestmark = pytest.mark.whole  # fits and evaluates a trained model many times

BLOCKS = 64


@pytest.fixture(scope="module")
def model():
    return decoder()


@pytest.fixture(scope="module")
def texts(model):
    """Calibration and held-out batches of the standard library's source code, by whole files."""
    batches = {}
    for split, documents in hold_out_files(library_sources(), 0.05).items():
        text = "".join(documents.at(number).values["text"][:4000] for number in range(min(60, documents.count)))
        tokens = np.asarray(model.tokenizer.backend.encode(text).ids)[: BLOCKS * LENGTH]
        blocks = tokens[: len(tokens) // LENGTH * LENGTH].reshape(-1, LENGTH)
        batches[split] = [{"input_ids": blocks[start::4]} for start in range(4)]
    return batches


@pytest.fixture(scope="module")
def calibration(model, texts):
    return calibrate(model, texts["train"])


@pytest.fixture(scope="module")
def ratio(model, texts):
    """Perplexity over that of the original."""
    own = headjax.evaluate(model, texts["validation"])["loss"]

    def of(converted) -> float:
        return math.exp(headjax.evaluate(converted, texts["validation"])["loss"] - own)

    return of


def test_it_needs_its_heads(model, texts) -> None:
    own = headjax.evaluate(model, texts["validation"])["loss"]
    gated = headjax.evaluate(
        headjax.gated(model, dict.fromkeys(headjax.all_heads(model.config), 0.0)), texts["validation"]
    )["loss"]
    assert own < 3.1
    assert gated > 1.7 * own


@pytest.mark.parametrize(
    ("target", "reconstruct", "most"),
    [("latent:rank=64", False, 1.03), ("latent:rank=32", False, 1.35), ("grouped:kv_heads=2", True, 1.5)],
)
def test_half_and_a_quarter_of_the_cache(model, calibration, ratio, target, reconstruct, most) -> None:
    converted = headjax.convert(model, target, batches=calibration, reconstruct=reconstruct).model
    width = model.config.width
    before, after = (
        sum(layer.module(width, width).cache_size() for layer in each.config.attentions()["decoder"])
        for each in (model, converted)
    )
    assert after <= before * (0.26 if "32" in target else 0.51)
    assert ratio(converted) < most


@pytest.mark.parametrize("target", ["grouped:kv_heads=2", "grouped:kv_heads=1", "latent:rank=32"])
def test_a_conversion_is_as_good_as_the_best_of_its_criteria(model, calibration, ratio, target) -> None:
    chosen = ratio(headjax.convert(model, target, batches=calibration).model)
    each = [
        ratio(headjax.convert(model, criterion, batches=moments).model)
        for criterion in headjax.conversion.parse_target(target).criteria()
        for moments in (calibration.moments, None)
    ]
    assert chosen < 1.02 * min(each)
    assert max(each) > 1.04 * min(each)
