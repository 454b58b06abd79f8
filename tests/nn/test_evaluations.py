"""Formulations that can be computed in two ways, what their caches hold, and what leaves with their heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.core.tensors import count, flatten, nested
from headjax.nn import (
    Call,
    CollaborativeAttention,
    CompressedAttention,
    Kind,
    LatentAttention,
    Mask,
    RotaryHalves,
)
from tests import tiny
from tests.closeness import assert_close
from tests.nn.formulations import (
    FORMULATIONS,
    SUMS,
    WIDTH,
    attended_by,
    kept_heads,
    random_inputs,
    random_params,
)

X = random_inputs()
CAUSAL = Call(mask=Mask(causal=True))


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
        monkeypatch.setattr(LatentAttention, "absorbs", lambda *_, absorbs=absorbs: absorbs)
        results.append(jax.jit(jax.grad(loss, has_aux=True))(params))
    # Rounding a logit changes its probability by a share that grows with the logit.
    probabilities = np.asarray(results[0][1].probabilities)
    logit = -np.log(probabilities[probabilities > 0].min())
    for expanded, absorbed in zip(*map(jax.tree.leaves, results), strict=True):
        assert_close(absorbed, expanded, sums=2 * SUMS, scale=logit * np.abs(expanded).max())


INNER = {
    "grouped": tiny.grouped(6, 2, 4, value_dim=3, projection_bias=True),
    "unequal groups": FORMULATIONS["ragged_grouped"],
    "own keys": tiny.multi_head(4, 4, value_dim=6, rotary=RotaryHalves(base=100.0)),
    "shared keys": FORMULATIONS["collaborative"],
}


@pytest.mark.parametrize("name", INNER)
def test_one_query_attends_to_a_compressed_latent_as_to_rebuilt_values(name):
    """Where the latent is small, one query reads it; padding, biases and unequal groups included."""
    compressed = Kind(CompressedAttention, inner=INNER[name], rank=3)
    present = np.arange(6)[None] < np.array([[6], [4]])
    call = Call(mask=Mask(keys=present), positions=np.full((2, 1), 5))

    @jax.jit
    def both(params, x):
        module = tiny.bound(compressed, params, WIDTH, WIDTH)
        stored = module.key_values(x, None)
        rebuilt = module.inner.key_values(stored["latent"], stored["position"])
        ways = (module, stored), (module.inner, rebuilt)
        return [way.attend(x[:, 5:], kept, call).context for way, kept in ways]

    assert_close(*both(random_params(compressed), X), sums=4 * SUMS)


def test_decoding_with_compressed_attention_rebuilds_no_values():
    compressed = Kind(CompressedAttention, inner=INNER["grouped"], rank=5)
    module = tiny.bound(compressed, random_params(compressed), WIDTH, WIDTH)
    stored = {"latent": jnp.zeros((1, 100, 5)), "position": jnp.zeros((1, 100), jnp.int32)}
    program = jax.jit(lambda x: module.attend(x, stored, Call()).context).lower(jnp.zeros((1, 1, WIDTH))).compile()
    assert program.cost_analysis()["flops"] < module.inner.flops(1, 100)
    assert module.flops(1, 100) - module.step_flops(100) == 2 * 99 * WIDTH * 5, "latents of earlier tokens are known"


ROTARY = {"rotary_dim": 2, "rotary": RotaryHalves()}


@pytest.mark.parametrize(
    ("attention", "numbers"),
    [
        (FORMULATIONS["fixed_head_size"], 3 * (6 + 5)),
        (tiny.grouped(8, 1, 4), 8),
        (tiny.grouped(8, 2, 4), 16),
        (Kind(LatentAttention, num_heads=1, rank=6, head_dim=4, **ROTARY), 6 + 2),
        (Kind(LatentAttention, num_heads=8, rank=6, head_dim=4, **ROTARY), 6 + 2),
        (Kind(CollaborativeAttention, num_heads=3, shared_dim=6, value_dim=5, head_dim=4), 6 + 3 * 5),
        (FORMULATIONS["collaborative"], 8 + 4 * 4 + 4),
        (FORMULATIONS["compressed"], 7 + 1),
    ],
    ids=lambda given: given.of.__name__ if isinstance(given, Kind) else str(given),
)
def test_the_cache_holds_so_many_numbers_per_token(attention, numbers):
    assert attention.module(WIDTH, WIDTH).cache_size() == numbers


def test_caches_hold_positions_exactly_in_any_type():
    """bfloat16 counts to 256 alone."""
    compressed = FORMULATIONS["compressed"]
    rough = jax.tree.map(lambda array: np.asarray(array).astype(jnp.bfloat16), random_params(compressed))
    module = tiny.bound(compressed, rough, WIDTH, WIDTH)
    kept = jax.jit(module.key_values)(X.astype(jnp.bfloat16), np.arange(1000, 1006)[None])
    assert {entry: array.shape for entry, array in kept.items()} == {"latent": (2, 6, 7), "position": (2, 6)}
    np.testing.assert_array_equal(kept["position"], [range(1000, 1006)] * 2)


def test_sizes_are_those_that_the_papers_count():
    """The standard layer does not grow with its heads, that of a fixed head size does; shared ones have an M."""
    standard = {count(tiny.weights(tiny.multi_head(h, 16 // h), 16, 16)) for h in (1, 2, 4, 8)}
    assert standard == {4 * 16 * 16 + 4 * 16}
    fixed = [count(tiny.weights(tiny.multi_head(h, 8, output_bias=False), 16, 16)) for h in (1, 2, 4)]
    assert fixed == [fixed[0], 2 * fixed[0], 4 * fixed[0]]
    lean = Kind(
        CollaborativeAttention, num_heads=4, shared_dim=6, value_dim=4, head_dim=4, value_bias=False, output_bias=False
    )
    assert count(tiny.weights(lean, WIDTH, WIDTH)) == 2 * WIDTH * 6 + 4 * 6 + 2 * WIDTH * WIDTH


def test_queries_may_attend_to_another_sequence_of_another_width():
    attention = FORMULATIONS["fixed_head_size"]
    shapes = {name: tensor.shape for name, tensor in flatten(tiny.weights(attention, WIDTH, 10)).items()}
    assert (shapes["query"], shapes["key"], shapes["value"]) == ((WIDTH, 3, 6), (10, 3, 6), (10, 3, 5))
    generator = np.random.default_rng(0)
    params = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    params = nested(params)
    assert attended_by(attention, params, X, memory=random_inputs(length=9, width=10)).context.shape == (2, 6, 3, 5)


@pytest.mark.parametrize(
    ("name", "heads", "fields", "read"),
    [
        (
            "fixed_head_size",
            [2, 0, 1],
            {"ids": (2, 0, 1)},
            {"query": np.s_[:, [2, 0, 1]], "output/kernel": np.s_[[2, 0, 1]]},
        ),
        ("grouped", [3, 4, 5], {"kv_heads": 1, "kv_index": None}, {"key": np.s_[:, 1:], "output/bias": np.s_[:]}),
        ("grouped", [0, 3, 4], {"kv_heads": 2, "kv_index": (0, 1, 1)}, {"key": np.s_[:]}),
        ("grouped", [0, 4], {"kv_heads": 2, "kv_index": None, "ids": (0, 4)}, {"key": np.s_[:]}),
        (
            "collaborative",
            [2],
            {"ids": (2,), "shared_dim": 8},
            {"query": np.s_[:], "mixing": np.s_[[2]], "content_bias": np.s_[:, [2]], "output/kernel": np.s_[[2]]},
        ),
        ("compressed", [3], {"ids": (3,), "inner.kv_heads": 1, "rank": 7}, {"inner/key": np.s_[:, [1]]}),
        ("gated", [2, 0], {"num_heads": 2, "ids": (2, 0), "inner.ids": (2, 0)}, {"gate": np.s_[:, [2, 0]]}),
    ],
)
def test_what_only_the_removed_heads_read_goes_with_them(name, heads, fields, read):
    attention = FORMULATIONS[name]
    params = random_params(attention)
    pruned, kept = kept_heads(attention, params, heads)
    for path, expected in fields.items():
        outer, _, field = path.rpartition(".")
        assert getattr(getattr(pruned, outer) if outer else pruned, field) == expected, path
    for path, index in read.items():
        np.testing.assert_array_equal(flatten(kept)[path], np.asarray(flatten(params)[path])[index], path)
