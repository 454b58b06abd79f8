"""headjax's modules in Flax programs: parity with `nnx.MultiHeadAttention`, training on a mesh, scoring, surgery."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.nnx import bridge
from jax.sharding import PartitionSpec

import headjax
from tests.closeness import assert_close
from tests.nn.formulations import WIDTH, module, random_inputs

CAUSAL = headjax.nn.Mask(causal=True)

compute = nnx.jit(
    lambda layer, *inputs, is_causal=False, **given: layer(*inputs, is_causal=is_causal, **given),
    static_argnames="is_causal",
)
"""One program of a layer's call."""


def flax_attention(causal_heads: int = 4) -> tuple[nnx.MultiHeadAttention, headjax.nn.AttentionModule]:
    """Flax's own attention and ours, with the same weights."""
    theirs = nnx.MultiHeadAttention(
        num_heads=causal_heads, in_features=WIDTH, decode=False, rngs=nnx.Rngs(3), deterministic=True
    )
    params = {"output": {"kernel": theirs.out.kernel[...], "bias": theirs.out.bias[...]}}
    for name in ("query", "key", "value"):
        params |= {name: getattr(theirs, name).kernel[...], f"{name}_bias": getattr(theirs, name).bias[...]}
    fields = {"num_heads": causal_heads, "head_dim": WIDTH // causal_heads}
    return theirs, headjax.MultiHeadAttention(WIDTH, params=params, **fields)


def test_multi_head_equals_flax():
    theirs, ours = flax_attention()
    inputs, other = random_inputs(), random_inputs(length=4, seed=5)
    assert float(jnp.abs(theirs(inputs) - ours(inputs)).max()) < 1e-6
    assert float(jnp.abs(theirs(inputs, other, other) - ours(inputs, other)).max()) < 1e-6
    causal = nnx.make_causal_mask(inputs[..., 0])
    for given in ({"mask": CAUSAL}, {"mask": causal}, {"is_causal": True}):
        assert float(jnp.abs(theirs(inputs, mask=causal) - ours(inputs, **given)).max()) < 1e-6
    padding = nnx.make_attention_mask(jnp.ones((2, 6)), jnp.arange(6)[None] < jnp.array([[6], [3]]))
    both = nnx.combine_masks(causal, padding)
    assert float(jnp.abs(theirs(inputs, mask=both) - ours(inputs, mask=padding, is_causal=True)).max()) < 1e-6


CAUSES = np.tril(np.ones((6, 6), bool))
HIDES = np.where(CAUSES, 0.0, -1e30).astype(np.float32)
SHAPED = [{"mask": CAUSES}, {"mask": CAUSES[None]}, {"mask": np.broadcast_to(CAUSES, (2, 4, 6, 6))}, {"bias": HIDES}]


@pytest.mark.parametrize("layer", ["rotary_halves", "collaborative", "compressed"])
def test_masks_and_biases_broadcast(layer):
    made, inputs = module(layer), random_inputs()
    expected = made(inputs, is_causal=True)
    for given in SHAPED:
        assert_close(compute(made, inputs, **given), expected, sums=WIDTH)


def test_a_mask_of_keys_alone_and_a_bias_beside_a_mask():
    layer, inputs, keys = module("multi_head"), random_inputs(), np.arange(6) != 2
    expected = layer(inputs, mask=headjax.nn.Mask(keys=np.stack([keys, keys])))
    assert_close(layer(inputs, mask=keys), expected, sums=WIDTH)
    assert_close(layer(inputs, bias=np.where(keys, 0.0, -1e30)), expected, sums=WIDTH)
    hidden = np.where(keys, 0.0, np.finfo(np.float32).min)
    assert_close(layer(inputs, mask=keys, bias=hidden), expected, sums=WIDTH)
    for wrong in (
        {"mask": keys[:5]},
        {"bias": np.zeros((3, 6, 6))},
        {"mask": headjax.nn.Mask(keys=np.ones((2, 5), bool))},
    ):
        with pytest.raises(headjax.HeadjaxError, match=f"^{next(iter(wrong))}"):
            layer(inputs, **wrong)


DECODED = ["rotary_halves", "ragged_grouped", "collaborative", "latent_rotary", "compressed"]


@pytest.mark.parametrize("name", DECODED)
def test_masks_beside_a_cache_count_queries_from_its_tokens(name):
    """Padding and windows, with and without `is_causal`, in steps of one and of two tokens."""
    layer, inputs = module(name), random_inputs(length=5)
    present = np.array([[True, True, True, True, True], [True, False, True, True, True]])
    keys = np.concatenate([present, np.ones((2, 2), bool)], axis=1)  # [batch, capacity]
    behind = np.arange(5)[:, None] - np.arange(5)
    causal, near = behind >= 0, np.abs(behind) < 2
    there = np.arange(5) < np.array([2, 2, 3, 5, 5])[:, None]  # tokens in the cache at each step
    cases = [
        ({"mask": headjax.nn.Mask(window=2), "is_causal": True}, causal & near),
        ({"mask": headjax.nn.Mask(causal=True, window=2)}, causal & near),
        ({"mask": headjax.nn.Mask(keys=keys), "is_causal": True}, causal & present[:, None, None]),
        ({"mask": keys[:, None, None]}, causal & present[:, None, None]),
        ({"mask": headjax.nn.Mask(window=2)}, near & there),
    ]
    for options, allowed in cases:
        expected = compute(layer, inputs, mask=allowed)
        cache, steps = layer.empty_cache(2, 7), []
        for start, stop in ((0, 2), (2, 3), (3, 5)):
            outputs, cache = compute(layer, inputs[:, start:stop], cache=cache, **options)
            steps.append(outputs)
        assert_close(np.concatenate(steps, axis=1), expected, sums=WIDTH, message=str(options))


def test_a_cache_that_is_full_is_an_error():
    layer, inputs = module("multi_head"), random_inputs(length=4)
    _, cache = layer(inputs, cache=layer.empty_cache(2, 5))
    with pytest.raises(headjax.HeadjaxError, match=r"^cache: holds 4 tokens of at most 5, and 2 more"):
        layer(inputs[:, :2], cache=cache)
    with pytest.raises(headjax.HeadjaxError, match=r"^cache: "):
        nnx.jit(lambda layer, x, cache: layer(x, cache=cache))(layer, random_inputs(), cache)
    assert int(layer(inputs[:, :1], cache=cache)[1].used) == 5


@pytest.mark.parametrize("name", DECODED)
def test_any_number_of_axes_of_examples(name):
    layer, inputs = module(name), random_inputs(batch=6)
    places, keys = np.broadcast_to(np.arange(6) + 1, (6, 6)), np.arange(6) < np.arange(1, 7)[:, None]
    options = {"positions": places, "mask": headjax.nn.Mask(keys=keys, causal=True)}
    folded = inputs.reshape(3, 2, 6, WIDTH)
    expected = np.reshape(compute(layer, inputs, **options), folded.shape)
    options = jax.tree.map(lambda array: array.reshape(3, 2, *array.shape[1:]), options)
    assert_close(compute(layer, folded, **options), expected, sums=WIDTH)
    causal, both = compute(layer, inputs, is_causal=True), np.tril(np.ones((3, 1, 1, 6, 6), bool))
    assert_close(compute(layer, folded, mask=both), np.reshape(causal, folded.shape), sums=WIDTH)
    alone, cache = compute(layer, inputs[3], cache=layer.empty_cache((), 6))
    assert_close(alone, causal[3], sums=WIDTH)
    assert all(6 in array.shape and array.ndim < 4 for array in cache.entries.values())
    two, _ = compute(layer, folded, cache=layer.empty_cache((3, 2), 8))
    assert_close(two, np.reshape(causal, folded.shape), sums=WIDTH)


def test_axes_of_examples_are_those_of_flax_and_wrong_shapes_are_named():
    theirs, ours = flax_attention()
    for inputs in (random_inputs()[0], np.stack([random_inputs(), random_inputs(seed=4)])):
        assert float(jnp.abs(theirs(inputs) - ours(inputs)).max()) < 1e-6
    x = random_inputs()
    for given, field in (((x[0, 0],), "x"), ((x[..., :8],), "x"), ((x, x[0]), "memory")):
        with pytest.raises(headjax.HeadjaxError, match=f"^{field}: shape"):
            ours(*given)


def test_sizes_are_derived_and_the_type_is_chosen_as_in_flax():
    assert headjax.MultiHeadAttention(WIDTH, num_heads=4, rngs=nnx.Rngs(0)).kind.head_dim == WIDTH // 4
    made = headjax.CollaborativeAttention(WIDTH, num_heads=4, shared_dim=8, value_dim=None, rngs=nnx.Rngs(0))
    assert (made.kind.head_dim, made.kind.value_dim) == (WIDTH // 4, WIDTH // 4)
    exact = headjax.MultiHeadAttention(WIDTH, num_heads=4, rngs=nnx.Rngs(0))
    coarse = headjax.MultiHeadAttention(WIDTH, num_heads=4, dtype=jnp.bfloat16, params=exact.params)
    inputs = random_inputs()
    assert coarse(inputs).dtype == jnp.bfloat16
    assert coarse.empty_cache(2, 3).entries["key"].dtype == jnp.bfloat16
    assert_close(coarse(inputs), exact(inputs), sums=WIDTH, dtype=jnp.bfloat16)
    assert coarse.params["query"].dtype == jnp.float32
    assert coarse.keep_heads([0, 2])(inputs).dtype == jnp.bfloat16


def test_own_rules_name_the_axes_that_are_spread_and_no_others():
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("fsdp", "tensor"))
    rules = {"embed": "fsdp", "heads": "tensor"}
    layer = headjax.MultiHeadAttention(WIDTH, num_heads=4, rules=rules, rngs=nnx.Rngs(0))
    placed = nnx.get_named_sharding(nnx.state(layer, nnx.Param), mesh)
    assert nnx.to_pure_dict(placed)["query"].spec == PartitionSpec("fsdp", "tensor", None)


def ours(count: int = 2, **options) -> list[nnx.Module]:
    """Our attention layers for somebody's blocks."""
    fields = {"num_heads": 4, "head_dim": 4} | options
    return [headjax.MultiHeadAttention(WIDTH, rngs=nnx.Rngs(seed), **fields) for seed in range(count)]


def test_dropout_draws_from_the_rngs_and_only_with_them():
    (layer,) = ours(1, dropout_rate=0.5)
    inputs, rngs = random_inputs(), nnx.Rngs(dropout=1)
    np.testing.assert_array_equal(layer(inputs), layer(inputs))
    first, second = layer(inputs, rngs=rngs), layer(inputs, rngs=rngs)
    assert float(jnp.abs(first - second).max()) > 1e-4
    np.testing.assert_array_equal(layer(inputs, rngs=nnx.Rngs(dropout=1)), first)


def test_deterministic_and_evaluation_mode_stop_dropout():
    layer, rngs = module("ragged_grouped", dropout_rate=0.5), nnx.Rngs(dropout=1)
    inputs, expected = random_inputs(), module("ragged_grouped")(random_inputs())
    block = nnx.List([layer])
    np.testing.assert_array_equal(layer(inputs, rngs=rngs, deterministic=True), expected)
    block.eval()
    np.testing.assert_array_equal(layer(inputs, rngs=rngs), expected)
    np.testing.assert_array_equal(layer.keep_heads([0, 1, 2, 3])(inputs, rngs=rngs), expected)
    assert float(jnp.abs(layer(inputs, rngs=rngs, deterministic=False) - expected).max()) > 1e-4
    block.train()
    assert float(jnp.abs(layer(inputs, rngs=rngs) - expected).max()) > 1e-4


SEEDED = {"rngs": nnx.Rngs(0)}


@pytest.mark.parametrize(
    ("kind", "fields", "field"),
    [
        ("MultiHeadAttention", SEEDED | {"num_heads": 0, "head_dim": 4}, "num_heads"),
        ("MultiHeadAttention", {"num_heads": 2, "head_dim": 4}, "rngs"),
        ("MultiHeadAttention", SEEDED | {"num_heads": 2, "head_dim": 4, "dropout_rate": 1.0}, "dropout_rate"),
        ("MultiHeadAttention", {"num_heads": 2, "head_dim": 4, "params": {"query": np.zeros((2, 2))}}, ".*query"),
        ("GroupedAttention", SEEDED | {"num_heads": 2}, "kv_heads"),
        ("MultiHeadAttention", SEEDED | {"num_heads": WIDTH - 1}, "head_dim"),
        ("MultiHeadAttention", SEEDED | {"heads": 2}, "heads"),
    ],
)
def test_wrong_arguments_are_named(kind, fields, field):
    with pytest.raises(headjax.HeadjaxError, match=f"^{field}"):
        getattr(headjax, kind)(WIDTH, **fields)


def test_a_layer_becomes_one_of_another_formulation():
    (layer,), inputs = ours(1), random_inputs()
    made = headjax.convert_attention(layer, "collaborative:shared_dim=16")
    assert isinstance(made, headjax.CollaborativeAttention)
    assert_close(made(inputs), layer(inputs), sums=20 * WIDTH)
    with pytest.raises(headjax.ConfigError, match="deep"):
        headjax.convert_attention(layer, "deep")


def test_linen_models_take_a_module_through_the_bridge():
    layer = bridge.to_linen(headjax.MultiHeadAttention, WIDTH, num_heads=4, head_dim=4)
    inputs = random_inputs()
    variables = layer.init(jax.random.key(0), inputs)
    params = jax.tree.map(lambda box: box.value, variables["params"], is_leaf=lambda box: hasattr(box, "value"))
    alone = headjax.MultiHeadAttention(WIDTH, params=params, num_heads=4, head_dim=4)
    assert_close(layer.apply(variables, inputs), alone(inputs), sums=WIDTH)
