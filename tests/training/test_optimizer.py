"""Learning rates by step, and the parameters that a step decays: every weight, and no bias, norm or multiplier.

`tests/mesh/shardings` lists them for the papers' models and every formulation.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.training.config import Cosine, InverseSquareRoot, decayed
from tests import tiny
from tests.tiny import flatten

ONES = tiny.decoder_config(*[tiny.layer(tiny.collaborative(mixing_init=headjax.nn.Ones))] * 4)
"""Its mixing matrices start as normalisations do."""


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (Cosine(peak=2.0, warmup_steps=2, final=0.5), [0.0, 1.0, 2.0, 1.5, 1.0]),
        (headjax.LinearDecay(peak=2.0, warmup_steps=2), [0.0, 1.0, 2.0, 1.0, 0.0]),
        (InverseSquareRoot(peak=2.0, warmup_steps=2), [0.0, 1.0, 2.0, 2.0 * (2 / 3) ** 0.5, 2.0 * (2 / 4) ** 0.5]),
        (headjax.ConstantRate(peak=2.0), [2.0] * 5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_learning_rates_by_step(schedule, rates):
    rate = schedule.build(4)
    np.testing.assert_allclose([rate(step) for step in range(5)], rates, rtol=1e-6, atol=1e-7)


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(lambda tensor: jnp.ones(tensor.shape), ONES.tensors())


@pytest.mark.whole
def test_a_step_without_gradients_moves_decayed_weights_alone(params):
    """AdamW's update is then -rate * weight_decay * weight, also of a mixing matrix that starts as ones."""
    tensors = ONES.tensors()
    optimizer = headjax.AdamW(schedule=headjax.ConstantRate(peak=0.1), weight_decay=0.5).build(tensors, 1)
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    moved = {path: float(array.min()) for path, array in flatten(updates).items()}
    wanted = {path: -0.05 if decays else 0.0 for path, decays in flatten(decayed(tensors)).items()}
    assert moved == pytest.approx(wanted)
    attention = {name: moved[f"decoder/layers_0_3/attention/{name}"] for name in ("mixing", "query", "output/bias")}
    assert attention == pytest.approx({"mixing": -0.05, "query": -0.05, "output/bias": 0.0})


def test_large_gradients_are_clipped_before_the_update(params):
    """Adam's first moment is linear in the gradient that it sees."""
    size = sum(array.size for array in jax.tree.leaves(params)) ** 0.5
    for clip_norm, seen in ((0.0, 3.0), (1.0, 1.0 / size)):
        optimizer = headjax.AdamW(schedule=headjax.ConstantRate(peak=0.1), clip_norm=clip_norm, b1=0.9).build(
            ONES.tensors(), 1
        )
        _, state = optimizer.update(jax.tree.map(lambda array: 3.0 * array, params), optimizer.init(params), params)
        for moment in jax.tree.leaves(state[1][0].mu):
            np.testing.assert_allclose(moment, 0.1 * seen, rtol=1e-5)
