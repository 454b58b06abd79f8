"""Losses that are fetched when they are due, and what a loss that is not finite says."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.core.errors import HeadjaxError
from headjax.core.losses import FETCH_EVERY, Losses


def test_losses_are_known_after_the_first_step_then_at_intervals_and_at_the_end():
    losses, total, known = Losses("a test", 2 * FETCH_EVERY + 3), 2 * FETCH_EVERY + 3, []
    for step in range(total):
        losses.add(jnp.float32(step))
        known.append(len(losses.fetched))
    changes = [1 + i for i in range(total) if known[i] != (known[i - 1] if i else 0)]
    assert changes == [1, FETCH_EVERY, 2 * FETCH_EVERY, total]
    np.testing.assert_array_equal(losses.fetch(), np.arange(total))
    assert losses.latest() == {"loss": total - 1}


def test_the_step_of_a_loss_that_is_not_finite_is_named():
    losses = Losses("a test", 100)
    for step in range(FETCH_EVERY - 1):
        losses.add(jnp.float32(np.nan if step == 7 else 1.0))
    with pytest.raises(HeadjaxError, match=r"^a test: the loss is nan at step 7, counted from 0$"):
        losses.add(jnp.float32(1.0))
