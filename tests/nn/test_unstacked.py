"""Layers held by themselves compute what a scan over stacked ones does, and `scan` is decided for a training step."""

import jax
import pytest
from flax import nnx

import headjax
from tests.closeness import assert_close


def test_layers_by_themselves_compute_the_same():
    model = headjax.demo_model()
    batch = headjax.text_batch(model.tokenizer, ["for name in names:", "if"])
    apart = model.unstacked()
    assert isinstance(apart.decoder.layers_0_3, nnx.List)
    assert_close(apart(batch).logits, model(batch).logits, sums=2000)
    assert headjax.evaluate(apart, [batch])["loss"] == pytest.approx(headjax.evaluate(model, [batch])["loss"], rel=1e-6)
    assert (
        apart.unstacked().decoder.layers_0_3[0].attention.query[...] is apart.decoder.layers_0_3[0].attention.query[...]
    )


@pytest.mark.parametrize("layers, scan", [(12, False), (13, True)])
def test_training_steps_of_few_layers_are_unrolled(layers, scan):
    if jax.default_backend() != "cpu":
        pytest.skip("the number of layers is that of CPUs")
    assert headjax.Compute().for_training(layers).scan is scan
    assert headjax.Compute(scan=not scan).for_training(layers).scan is (not scan)
