"""Formulations that can be computed in two ways, what their caches hold, and what leaves with their heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

import headjax
from tests import tiny
from tests.closeness import assert_close
from tests.nn.formulations import FORMULATIONS, SUMS, WIDTH, attended_by, random_inputs, random_params
from tests.tiny import flatten

X = random_inputs()
CAUSAL = headjax.nn.AttentionOptions(mask=headjax.nn.Mask(causal=True))


@pytest.mark.parametrize("name", ["latent", "latent_rotary"])
def test_absorbed_and_expanded_latents_agree_with_gradients(name, monkeypatch):
    latent = FORMULATIONS[name]
    params = random_params(latent)

    def loss(params):
        module = tiny.bound(latent, params, WIDTH, WIDTH)
        attended = module.attend(X, module.key_values(X, None), CAUSAL)
        return jnp.sum(jnp.sin(attended.context)), attended

    results = []
    for absorbs in (False, True):
        monkeypatch.setattr(headjax.LatentAttention, "absorbs", lambda *_, absorbs=absorbs: absorbs)
        results.append(jax.jit(jax.grad(loss, has_aux=True))(params))
    # Rounding a logit changes its probability by a share that grows with the logit.
    probabilities = np.asarray(results[0][1].probabilities)
    logit = -np.log(probabilities[probabilities > 0].min())
    for expanded, absorbed in zip(*map(jax.tree.leaves, results), strict=True):
        assert_close(absorbed, expanded, sums=2 * SUMS, scale=logit * np.abs(expanded).max())


INNER = {
    "grouped": tiny.grouped(6, 2, 4, value_dim=3, projection_bias=True),
    "unequal groups": FORMULATIONS["ragged_grouped"],
    "own keys": tiny.multi_head(4, 4, value_dim=6, rotary=headjax.nn.RotaryHalves(base=100.0)),
    "shared keys": FORMULATIONS["collaborative"],
}


@pytest.mark.parametrize("name", INNER)
def test_one_query_attends_to_a_compressed_latent_as_to_rebuilt_values(name):
    """Where the latent is small, one query reads it; padding, biases and unequal groups included."""
    compressed = headjax.Kind(headjax.CompressedAttention, inner=INNER[name], rank=3)
    present = np.arange(6)[None] < np.array([[6], [4]])
    call = headjax.nn.AttentionOptions(mask=headjax.nn.Mask(keys=present), positions=np.full((2, 1), 5))

    @jax.jit
    def both(params, x):
        module = tiny.bound(compressed, params, WIDTH, WIDTH)
        stored = module.key_values(x, None)
        rebuilt = module.inner.key_values(stored["latent"], stored["position"])
        ways = (module, stored), (module.inner, rebuilt)
        return [way.attend(x[:, 5:], kept, call).context for way, kept in ways]

    assert_close(*both(random_params(compressed), X), sums=4 * SUMS)


def test_caches_hold_positions_exactly_in_any_type():
    """bfloat16 counts to 256 alone."""
    compressed = FORMULATIONS["compressed"]
    rough = jax.tree.map(lambda array: np.asarray(array).astype(jnp.bfloat16), random_params(compressed))
    module = tiny.bound(compressed, rough, WIDTH, WIDTH)
    kept = jax.jit(module.key_values)(X.astype(jnp.bfloat16), np.arange(1000, 1006)[None])
    assert {entry: array.shape for entry, array in kept.items()} == {"latent": (2, 6, 7), "position": (2, 6)}
    np.testing.assert_array_equal(kept["position"], [range(1000, 1006)] * 2)


def test_queries_may_attend_to_another_sequence_of_another_width():
    attention = FORMULATIONS["fixed_head_size"]
    shapes = {name: tensor.shape for name, tensor in flatten(tiny.weights(attention, WIDTH, 10)).items()}
    assert (shapes["query"], shapes["key"], shapes["value"]) == ((WIDTH, 3, 6), (10, 3, 6), (10, 3, 5))
    generator = np.random.default_rng(0)
    params = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    params = unflatten_dict(params, sep="/")
    assert attended_by(attention, params, X, memory=random_inputs(length=9, width=10)).context.shape == (2, 6, 3, 5)
