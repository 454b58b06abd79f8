"""Attention layers of headjax in models that know nothing of it, behind the signature that they call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import headjax
from tests.closeness import assert_close
from tests.selected import first
from tests.sites import houses
from tests.sites.houses import HEADS, HOUSES, SIZE, SUMS, WIDTH, batches, evaluated, loss, snapshot, trained, without

BATCH = batches(1)[0]


def grouped(rngs):
    return houses.flax_attention(rngs, num_kv_heads=2)


@pytest.mark.parametrize("attention", [houses.flax_attention, grouped])
def test_the_same_formulation_is_the_same_model(attention):
    model = houses.Classifier(attention)
    before = snapshot(model)
    replaced = headjax.replace_attention(model, lambda layer: layer)
    assert_close(evaluated(replaced, BATCH), evaluated(model, BATCH), sums=SUMS)
    assert [type(layer.attn.inner).__name__ for layer in replaced.layers] == ["GroupedAttention"] * 2
    assert snapshot(model)[0] == before[0]
    some = headjax.replace_attention(model, lambda layer: layer, layers=["layers.1.attn"])
    assert [isinstance(layer.attn, nnx.MultiHeadAttention) for layer in some.layers] == [True, False]


@pytest.mark.parametrize(
    "to", first(1, ["grouped:kv_heads=2", "latent:rank=6", f"collaborative:shared_dim={HEADS * SIZE}"])
)
def test_other_formulations_run_and_train(to):
    model = HOUSES["flax"]()
    replaced = headjax.replace_attention(model, to)
    if to.startswith("collaborative"):  # at full rank
        assert_close(evaluated(replaced, BATCH), evaluated(model, BATCH), sums=8 * SUMS)
    losses = trained(replaced, BATCH, 10)
    assert losses[-1] < 0.8 * losses[0]
    assert len(headjax.score_heads(replaced, [BATCH], loss=loss).score("importance")) == 2 * HEADS


def test_groups_may_be_unequal():
    model = houses.Classifier(grouped)
    replaced = headjax.replace_attention(model, lambda layer: layer.keep_heads([0, 2, 3]))
    expected = evaluated(without(model, ["layers.0.attn/1", "layers.1.attn/1"]), BATCH)
    assert_close(evaluated(replaced, BATCH), expected, sums=SUMS)


def test_masks_and_memories_pass_through():
    layer = houses.flax_attention(nnx.Rngs(0), in_kv_features=5, dropout_rate=0.0)
    x, memory = jax.random.normal(jax.random.key(0), (2, 3, WIDTH)), jax.random.normal(jax.random.key(1), (2, 4, 5))
    mask = jnp.array([[[[1, 0, 1, 1]]], [[[1, 1, 1, 0]]]], bool)
    replaced = headjax.replace_attention(layer, lambda layer: layer)
    assert_close(replaced(x, memory, mask=mask), layer(x, memory, mask=mask), sums=SUMS)
    alone, itself = (
        houses.flax_attention(nnx.Rngs(0), dropout_rate=0.0),
        jax.random.normal(jax.random.key(0), (2, 3, WIDTH)),
    )
    replaced = headjax.replace_attention(alone, lambda layer: layer)
    assert_close(replaced(itself, is_causal=True), alone(itself, is_causal=True), sums=SUMS)
    with pytest.raises(headjax.HeadjaxError, match="cache"):
        replaced(itself, decode=True)
    with pytest.raises(headjax.HeadjaxError, match="inputs_v"):
        replaced(itself, itself, itself + 1.0)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("flat_remat", {}, "layers.0.attn"),
        ("flax_grouped", {}, "layers.0.attn"),
        ("flax", {"layers": ["layers.7.attn"]}, "layers.7.attn"),
        ("flax", {"to": "gruped"}, "gruped"),
    ],
)
def test_what_cannot_be_replaced_is_one_line(name, options, message):
    with pytest.raises(headjax.HeadjaxError, match=message):
        headjax.replace_attention(HOUSES[name](), **({"to": "grouped:kv_heads=1"} | options))


def rotary(query, key, value, **options):
    """Flax's way to rotary embeddings."""
    turn = jnp.exp(1j * jnp.arange(query.shape[-3])[:, None, None])
    query, key = ((array * turn).real for array in (query, key))
    return nnx.dot_product_attention(query, key, value, **options)


class Turned(nnx.MultiHeadAttention):
    """Attention with a call of its own."""

    def __call__(self, inputs_q, **options):
        return super().__call__(jnp.flip(inputs_q, axis=-2), **options)


class Sink(nnx.MultiHeadAttention):
    """Attention with a weight of its own."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.sink = nnx.Param(jnp.zeros(HEADS))


class Clipped(nnx.LinearGeneral):
    """A projection that does more than its kernel."""

    def __call__(self, inputs, **options):
        return jnp.clip(super().__call__(inputs, **options), -1.0, 1.0)


def clipped(rngs):
    layer = houses.flax_attention(rngs)
    layer.query = Clipped(WIDTH, (HEADS, SIZE), rngs=rngs)
    return layer


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda rngs: houses.flax_attention(rngs, attention_fn=rotary), "attention_fn"),
        (lambda rngs: houses.flax_attention(rngs, precision="highest"), "precision"),
        (lambda rngs: houses.flax_attention(rngs, qkv_promote_dtype=lambda x, dtype=None: x), "qkv_promote_dtype"),
        (lambda rngs: houses.flax_attention(rngs, normalize_qk=True), "normalize_qk"),
        (lambda rngs: houses.flax_attention(rngs, out_features=2 * WIDTH), "out_features"),
        (lambda rngs: Turned(HEADS, WIDTH, decode=False, rngs=rngs), "__call__"),
        (lambda rngs: Sink(HEADS, WIDTH, decode=False, rngs=rngs), "sink"),
        (clipped, "query"),
    ],
)
def test_what_a_new_layer_would_leave_out_is_refused_by_name(make, named):
    layer = make(nnx.Rngs(0))
    with pytest.raises(headjax.HeadjaxError, match=rf"^\.: .*{named}") as caught:
        headjax.replace_attention(layer, lambda own: own)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", [{"sow_weights": True}, {"out_sharding": "data"}, {"window": 3}])
def test_an_argument_that_a_new_layer_does_not_know_is_refused_by_name(option):
    replaced = headjax.replace_attention(houses.flax_attention(nnx.Rngs(0), dropout_rate=0.0), lambda own: own)
    x = BATCH["x"]
    with pytest.raises(headjax.HeadjaxError, match=f"^{next(iter(option))}: "):
        replaced(x, **option)
    assert_close(replaced(x, sow_weights=False, out_sharding=None), replaced(x), sums=1)


def test_dropout_without_random_numbers_is_refused_as_in_the_replaced_layer():
    layer = houses.flax_attention(nnx.Rngs(0), dropout_rate=0.5, keep_rngs=False)
    replaced = headjax.replace_attention(layer, lambda own: own)
    for one in (layer, replaced):
        with pytest.raises(ValueError, match="rngs"):
            one(BATCH["x"], deterministic=False)
    assert_close(replaced(BATCH["x"], deterministic=True), layer(BATCH["x"], deterministic=True), sums=SUMS)


@pytest.mark.parametrize(("dtype", "param_dtype"), [(None, jnp.bfloat16), (jnp.bfloat16, jnp.float32)])
def test_a_new_layer_computes_in_the_type_of_the_replaced_one(dtype, param_dtype):
    layer = houses.flax_attention(nnx.Rngs(0), dropout_rate=0.0, dtype=dtype, param_dtype=param_dtype)
    replaced = headjax.replace_attention(layer, lambda own: own)
    for x in (BATCH["x"], jnp.asarray(BATCH["x"], jnp.bfloat16)):
        found, expected = houses.forward(replaced, x), houses.forward(layer, x)
        assert found.dtype == expected.dtype
        kind = jnp.bfloat16 if jnp.bfloat16 in (dtype, param_dtype, x.dtype) else np.float32
        assert_close(found, expected, sums=SUMS, dtype=kind)


@pytest.mark.whole
def test_dropout_is_that_of_the_layer():
    model = houses.flax_attention(nnx.Rngs(0), dropout_rate=0.5)
    replaced = headjax.replace_attention(model, lambda layer: layer)
    x = jax.random.normal(jax.random.key(0), (1, 3, WIDTH))
    dropped = [np.asarray(replaced(x, rngs=nnx.Rngs(dropout=seed), deterministic=False)) for seed in (0, 1)]
    assert not np.allclose(*dropped)
    assert not np.allclose(replaced(x, deterministic=False), replaced(x, deterministic=False))
    assert_close(replaced(x, rngs=nnx.Rngs(dropout=0), deterministic=True), model(x, deterministic=True), sums=SUMS)
