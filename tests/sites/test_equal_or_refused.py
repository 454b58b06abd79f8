"""A pruned layer of anybody's equals the gated one, or is refused: what depends on the number or the index of heads."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import headjax
from tests.closeness import assert_close
from tests.sites.houses import forward

WIDTH, HEADS, SIZE, LENGTH = 32, 4, 8, 400


class Attention(nnx.Module):
    """Attention whose logits are changed by a function of the layer, the logits and the distances."""

    def __init__(self, change=None, deviation=0.2, out=0.2, kv=HEADS, dtype=jnp.float32):
        rngs, numbers = nnx.Rngs(0), (HEADS, kv, kv, HEADS)
        self.change, self.num_heads, self.num_kv_heads, self.head_dim = change, HEADS, kv, SIZE
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nnx.Linear(
                *((WIDTH, number * SIZE) if place < 3 else (number * SIZE, WIDTH)),
                use_bias=False,
                kernel_init=nnx.initializers.normal(out if place == 3 else deviation),
                param_dtype=dtype,
                rngs=rngs,
            )
            for place, number in enumerate(numbers)
        )

    def __call__(self, x):
        q, k, v = (
            layer(x).reshape(*x.shape[:2], -1, self.head_dim) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        k, v = (jnp.repeat(y, self.num_heads // self.num_kv_heads, axis=2) for y in (k, v))
        logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) * self.head_dim**-0.5
        places = jnp.arange(x.shape[1])
        if self.change is not None:
            logits = self.change(self, logits, jnp.abs(places[:, None] - places[None])[None, None])
        contexts = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits), v)
        return self.o_proj(contexts.reshape(*x.shape[:2], -1))


def slopes(layer, logits, distance):
    heads = jnp.arange(layer.num_heads) + 1
    return logits - (2.0 ** (-8 * heads / layer.num_heads))[None, :, None, None] * distance


def slopes_of_the_shape(layer, logits, distance):
    heads = jnp.arange(logits.shape[1]) + 1
    return logits - (2.0 ** (-8 * heads / logits.shape[1]))[None, :, None, None] * distance


def scale(layer, logits, distance):
    return logits * (WIDTH / layer.num_heads) ** -0.5


def windows(layer, logits, distance):
    reach = jnp.where(jnp.arange(logits.shape[1]) % 2, 300, LENGTH)
    return jnp.where(distance < reach[None, :, None, None], logits, -1e9)


def windows_of_the_length(layer, logits, distance):
    reach = jnp.where(jnp.arange(logits.shape[1]) % 2, logits.shape[-1] // 2, logits.shape[-1])
    return jnp.where(distance < reach[None, :, None, None], logits, -1e9)


def mixed(layer, logits, distance):
    return logits - 0.3 * logits.mean(axis=1, keepdims=True)


@pytest.mark.parametrize(
    "change, gone, reason",
    [
        (slopes, [0], "ALiBi"),
        (slopes_of_the_shape, [1], "ALiBi"),
        (scale, [2], "scale"),
        (windows, [0], "windows"),
        (windows, [1, 2], None),  # those that are left have their windows
        (windows_of_the_length, [0], "windows"),
        (mixed, [1], "depend on each other"),
        (None, [0, 3], None),
    ],
)
def test_a_layer_equals_the_gated_one_or_is_refused(change, gone, reason):
    layer, heads = Attention(change), [f"./{head}" for head in gone]
    if reason is not None:
        with pytest.raises(headjax.HeadjaxError, match=rf"^\.: .*{reason}"):
            headjax.prune(layer, heads)
        return
    x = jax.random.normal(jax.random.key(1), (1, LENGTH, WIDTH))
    expected = forward(headjax.gated(layer, dict.fromkeys(heads, 0.0)), x)
    assert_close(forward(headjax.prune(layer, heads), x), expected, sums=2 * WIDTH + HEADS * SIZE + LENGTH)


@pytest.mark.parametrize(
    "options",
    [{"deviation": 0.01}, {"out": 0.0, "dtype": jnp.bfloat16, "kv": 2}],
    ids=["small weights", "an output of 0, bfloat16, groups"],
)
def test_it_shows_whatever_the_weights_are(options):
    with pytest.raises(headjax.HeadjaxError, match="ALiBi"):
        headjax.prune(Attention(slopes, **options), ["./0", "./1"])


@pytest.mark.parametrize(
    "name, held",
    [
        ("slopes", jnp.ones(HEADS)),
        ("temperature", nnx.Param(jnp.ones((HEADS, 1, 1)))),
        ("mix", nnx.Param(jnp.eye(HEADS))),
    ],
)
def test_an_array_by_head_is_named(name, held):
    layer = Attention()
    setattr(layer, name, nnx.data(held))
    with pytest.raises(headjax.HeadjaxError, match=rf"^\.: {name} has shape .*4 heads; .*register_attention"):
        headjax.prune(layer, ["./0"])


class Tied(nnx.Module):
    """Two layers that share a part: the module of a projection, or its kernel."""

    def __init__(self, name, whole):
        rngs = nnx.Rngs(0)
        self.a, self.b = (nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs) for _ in range(2))
        if whole:
            setattr(self.b, name, getattr(self.a, name))
        else:
            getattr(self.b, name).kernel = getattr(self.a, name).kernel

    def __call__(self, x):
        x = x + self.a(x)
        return x + self.b(x)


@pytest.mark.parametrize("name, whole", [("query", True), ("out", False)])
def test_tied_layers_lose_the_same_heads_or_are_refused(name, whole):
    net, x = Tied(name, whole), jax.random.normal(jax.random.key(0), (2, 6, WIDTH))
    with pytest.raises(headjax.HeadjaxError, match=rf"^b: shares its {name}\.\w+ with a .*same heads of both"):
        headjax.prune(net, ["a/1"])
    with pytest.raises(headjax.HeadjaxError, match="same heads of both"):
        headjax.prune(net, ["a/1", "b/2"])
    expected = forward(headjax.gated(net, {"a/1": 0.0, "b/1": 0.0}), x)
    pruned = headjax.prune(net, ["a/1", "b/1"])
    assert_close(forward(pruned, x), expected, sums=6 * WIDTH)
    assert getattr(pruned.a, name).kernel is getattr(pruned.b, name).kernel
    again = headjax.prune(pruned, ["a/0", "b/0"])
    expected = forward(headjax.gated(net, dict.fromkeys(["a/0", "a/1", "b/0", "b/1"], 0.0)), x)
    assert_close(forward(again, x), expected, sums=6 * WIDTH)


def test_a_kernel_that_is_no_attention_layers_alone_is_refused():
    net = Tied("query", whole=False)
    net.elsewhere = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    net.elsewhere.kernel = net.a.out.kernel
    with pytest.raises(headjax.HeadjaxError, match=r"^a: shares its out\.kernel with elsewhere\.kernel"):
        headjax.prune(net, ["a/1", "b/1"])


def test_one_output_module_of_two_layers_cannot_hold_the_gates_of_both():
    net = Tied("out", whole=True)
    with pytest.raises(headjax.HeadjaxError, match=r"^b: shares its out with a"):
        headjax.gated(net, {"a/1": 0.0})
