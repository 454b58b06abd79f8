"""Every formulation in every stack: padding, causality, gates, scanning, eight devices, bfloat16.

Each case needs three programs. The examples of one batch do not see each other, so that one forward holds the original
and all its variations.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.heads import gates as gate_arrays
from headjax.mesh.mesh import MeshConfig, batch_sharding
from headjax.mesh.rules import shardings
from headjax.models import Compute, Options
from headjax.models.sublayers import Dense
from headjax.models.vision import Vit
from tests import tiny
from tests.attention.formulations import FORMULATIONS
from tests.closeness import assert_close
from tests.models.test_encoder import config as encoder_config
from tests.models.test_encoder_decoder import translation
from tests.models.test_vision import PATCHES

pytestmark = pytest.mark.whole

LENGTH, SEEN = 6, 4
ORIGINAL, PADDING, LAST, FIRST, GATED = range(5)
"""Rows of the batch: as it is; padding changed; last token seen changed; first token changed; head 0 without effect."""


def rows(values: int = tiny.VOCABULARY) -> np.ndarray:
    tokens = np.tile(np.random.default_rng(0).integers(0, values, (1, LENGTH)), (8, 1))
    tokens[PADDING, SEEN:] = (tokens[PADDING, SEEN:] + 1) % values
    tokens[LAST, SEEN - 1] = (tokens[LAST, SEEN - 1] + 1) % values
    tokens[FIRST, 0] = (tokens[FIRST, 0] + 1) % values
    return tokens


MASK = np.tile(np.arange(LENGTH) < SEEN, (8, 1)).astype(np.int32)
TEXT = {"input_ids": rows(), "attention_mask": MASK}


def without_head_zero(config):
    """Gates per example, all ones but those of head 0 in the row `GATED`."""
    return {
        stack: jnp.broadcast_to(array[:, None], (array.shape[0], 8, array.shape[1])).at[:, GATED, 0].set(0.0)
        for stack, array in gate_arrays.ones(config).items()
    }


@functools.partial(jax.jit, static_argnums=(0, 4))
def forward(config, params, batch, gates, compute):
    return config.apply(params, batch, Options(gates=gates, compute=compute)).hidden


def hidden(config, batch):
    """Hidden states of every row: the same on eight devices, unrolled and without gates, and close in bfloat16."""
    model = tiny.model(config)
    scanned = np.asarray(forward(config, model.params, batch, without_head_zero(config), Compute()))
    mesh = MeshConfig(data=4, fsdp=2).build()
    params = jax.device_put(model.params, shardings(config.tensors(), mesh))
    spread = jax.device_put(batch, batch_sharding(mesh))
    unrolled = np.asarray(forward(config, params, spread, None, Compute(scan=False)))
    assert np.isfinite(scanned).all()
    others = [row for row in range(8) if row != GATED]
    assert_close(unrolled[others], scanned[others], sums=tiny.SUMS)
    np.testing.assert_array_equal(differs(scanned, unrolled[ORIGINAL], GATED), True)
    rough = np.asarray(forward(config, model.params, batch, None, Compute(dtype="bfloat16")), np.float32)
    difference = np.abs(rough - scanned)[ORIGINAL, :SEEN].max()
    assert 0 < difference < 0.1 * np.abs(scanned[ORIGINAL]).max()
    return scanned


def differs(states, original, row):
    """Which of the positions seen differ from the original's."""
    return np.abs(states[row] - original)[:SEEN].max(axis=-1) > 3e-5


@pytest.mark.parametrize("name", list(FORMULATIONS))
def test_encoder(name):
    states = hidden(encoder_config(attention=FORMULATIONS[name], num_layers=2, segments=0, pooler=None), TEXT)
    original = states[ORIGINAL]
    np.testing.assert_array_equal(differs(states, original, PADDING), False)
    np.testing.assert_array_equal(differs(states, original, LAST), True)
    np.testing.assert_array_equal(differs(states, original, FIRST), True)


@pytest.mark.parametrize("name", list(FORMULATIONS))
def test_decoder(name):
    config = tiny.decoder_config(*[tiny.layer(FORMULATIONS[name])] * 2)
    states = hidden(config, TEXT)
    original = states[ORIGINAL]
    np.testing.assert_array_equal(differs(states, original, PADDING), False)
    np.testing.assert_array_equal(differs(states, original, LAST), [False, False, False, True])
    np.testing.assert_array_equal(differs(states, original, FIRST), True)


@pytest.mark.parametrize("name", list(FORMULATIONS))
def test_encoder_decoder(name):
    """Rows vary the source; the target varies in the row LAST only, where the source does not."""
    config = translation(attention=FORMULATIONS[name], decoder_attention=None, cross_attention=None)
    source = rows()
    target = rows()[::-1].copy()
    target[:] = target[-1]
    source[LAST] = source[ORIGINAL]
    target[LAST, SEEN - 1] = (target[LAST, SEEN - 1] + 1) % tiny.VOCABULARY
    states = hidden(config, {"input_ids": source, "attention_mask": MASK, "decoder_input_ids": target})
    original = states[ORIGINAL]
    np.testing.assert_array_equal(differs(states, original, PADDING), False)
    np.testing.assert_array_equal(differs(states, original, LAST), [False, False, False, True])
    np.testing.assert_array_equal(differs(states, original, FIRST), True)


@pytest.mark.parametrize("name", ["multi_head", "collaborative", "grouped", "latent"])
def test_vision(name):
    recipe = Vit(
        attention=FORMULATIONS[name],
        feed_forward=Dense(32),
        patches=PATCHES,
        width=tiny.WIDTH,
        num_layers=2,
        initializer=tiny.decoder_config().initializer,
    )
    images = np.tile(np.random.default_rng(0).standard_normal((1, 3, 6, 6)), (8, 1, 1, 1)).astype(np.float32)
    images[LAST, :, -1, -1] += 1.0
    states = hidden(recipe.build(), {"pixel_values": images})
    np.testing.assert_array_equal(differs(states, states[ORIGINAL], LAST), True)
