"""Conversions that calibration batches improve."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.conversion import Target, ToCollaborative, ToTucker, convert
from headjax.conversion.calibration import collect, covariance_root
from headjax.conversion.products import Products, query_key, relative_distance
from tests.conversion.cases import EXACT, LABELS, LOSSY, PADDED, QUICK, attentions, hidden, translation


def test_calibration_lowers_the_error_of_logits(model) -> None:
    for target in (ToCollaborative(shared_dim=6, search=QUICK), ToTucker(rank=6)):
        plain, calibrated = convert(model, target), convert(model, target, batches=[PADDED])
        assert all(error.logit_error is None for error in plain.errors)
        for before, after in zip(_logit_errors(model, target), calibrated.errors, strict=True):
            assert after.logit_error < before
        expected = hidden(model, PADDED)
        change = [np.square(hidden(c.model, PADDED) - expected).sum() for c in (plain, calibrated)]
        assert change[1] < change[0]


def _logit_errors(model, target: Target) -> list[float]:
    """Return the errors of logits of an uncalibrated conversion, under the moments that calibration would see."""

    found, moments = [], collect(model, [PADDED])
    converted = convert(model, target).model
    stacks = [m.config.stacks()["encoder"].unstack(m.params["encoder"]) for m in (model, converted)]
    for layer in range(2):
        m = moments["encoder", layer]
        roots = covariance_root(m.query_covariance).root, covariance_root(m.key_within).root
        sides = []
        for stack, attention in zip(stacks, (attentions(model)[layer], attentions(converted)[layer]), strict=True):
            products = query_key(attention, stack[layer]["attention"])
            sides.append(Products(*(jnp.tensordot(r, side, 1) for r, side in zip(roots, products, strict=True))))
        found.append(float(relative_distance(*sides)))
    return found


@pytest.mark.parametrize("target", list(EXACT))
def test_calibrated_conversions_that_lose_nothing_keep_the_function(model, outputs, target: str) -> None:
    converted, _ = convert(model, EXACT[target], batches=[PADDED])
    np.testing.assert_allclose(hidden(converted, PADDED), outputs, atol=1e-3)


def test_calibration_sees_cross_attention(tmp_path) -> None:
    source, batch = translation(), PADDED | {"labels": LABELS}
    _, errors = convert(source, LOSSY["latent"], batches=[batch], stacks=["cross"])
    assert [(error.stack, error.layer) for error in errors] == [("cross", 0), ("cross", 1)]
    assert all(error.logit_error is not None for error in errors)
