"""Queries, keys and values in one parameter, as nanoGPT, timm and MaxText have them: found, checked and pruned."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import headjax
from tests.closeness import assert_close
from tests.selected import first
from tests.sites import houses
from tests.sites.houses import HEADS, SIZE, SUMS, WIDTH, batches, evaluated, loss, trained, without


def fused_view(layer: Any, fused: Any) -> headjax.AttentionSite:
    numbers = {"heads": layer.n_head, "kv_heads": layer.n_kv_heads, "head_dim": layer.head_dim}
    query = {"c_proj.kernel": -2}
    return headjax.AttentionSite(**numbers, output="c_proj", kernel="c_proj.kernel", query=query, fused=fused)


BATCH = batches(1)[0]


@dataclasses.dataclass
class Config:
    """A config that alone says how many heads there are."""

    n_head: int


def attend(q, k, v):
    """Attention of `[batch, length, heads, size]`, key heads repeated."""
    k, v = (jnp.repeat(y, q.shape[2] // y.shape[2], axis=2) for y in (k, v))
    weights = jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", q, k) * q.shape[-1] ** -0.5)
    return jnp.einsum("bnts,bsnh->btnh", weights, v)


class Flat(nnx.Module):
    """One flat map to queries, keys and values, one after another."""

    def __init__(self, rngs: nnx.Rngs, heads: int = HEADS, kv: int = 2, size: int = SIZE) -> None:
        self.n_head, self.n_kv_heads, self.head_dim = heads, kv, size
        self.c_attn = nnx.Linear(WIDTH, (heads + 2 * kv) * size, bias_init=nnx.initializers.normal(0.3), rngs=rngs)
        self.c_proj = nnx.Linear(heads * size, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        heads, kv = self.n_head, self.n_kv_heads
        y = self.c_attn(x).reshape(*x.shape[:2], -1, self.head_dim)
        y = attend(*jnp.split(y, [heads, heads + kv], axis=2))
        return self.c_proj(y.reshape(*x.shape[:2], -1))


class Pair(Flat):
    """A flat map to queries, and one to keys and values."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.heads, self.head_dim = HEADS, SIZE
        self.to_q = nnx.Linear(WIDTH, HEADS * SIZE, rngs=rngs)
        self.to_kv = nnx.Linear(WIDTH, 2 * HEADS * SIZE, bias_init=nnx.initializers.normal(0.3), rngs=rngs)
        self.to_out = nnx.Linear(HEADS * SIZE, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (*x.shape[:2], self.heads, self.head_dim)
        k, v = jnp.split(self.to_kv(x), 2, axis=-1)
        y = attend(*(array.reshape(shape) for array in (self.to_q(x), k, v)))
        return self.to_out(y.reshape(*x.shape[:2], -1))


class DenseGeneral(nnx.Module):
    """A projection with the attributes of MaxText's."""

    def __init__(self, ins: tuple[int, ...], outs: tuple[int, ...], rngs: nnx.Rngs) -> None:
        self.in_features_shape, self.out_features_shape = ins, outs
        self.kernel = nnx.Param(rngs.params.normal((*ins, *outs)) * 0.4)
        self.bias = nnx.Param(rngs.params.normal(outs) * 0.3)

    def __call__(self, x: jax.Array, out_sharding: Any = None) -> jax.Array:
        axes = len(self.in_features_shape)
        y = jax.lax.dot_general(
            x, self.kernel[...], ((tuple(range(x.ndim - axes, x.ndim)), tuple(range(axes))), ((), ()))
        )
        return y + self.bias[...].reshape((1,) * (x.ndim - axes) + self.bias[...].shape)


class OneDense(nnx.Module):
    """Queries, keys and values of one projection: along an axis of their own, of the heads, or within a head."""

    def __init__(self, rngs: nnx.Rngs, outs: tuple[int, ...]) -> None:
        self.num_query_heads, self.num_kv_heads = HEADS, 2 if outs[0] == HEADS + 4 else HEADS
        self.qkv_proj = DenseGeneral((WIDTH,), outs, rngs)
        self.out = DenseGeneral((HEADS, SIZE), (WIDTH,), rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.qkv_proj(x)
        heads, kv = self.num_query_heads, self.num_kv_heads
        if y.ndim == 5:
            parts = [y[:, :, number] for number in range(3)]
        elif y.shape[-1] == 3 * SIZE:
            parts = jnp.split(y, 3, axis=-1)
        else:
            parts = jnp.split(y, [heads, heads + kv], axis=2)
        return self.out(attend(*parts), out_sharding=None)


def within(rngs):
    return OneDense(rngs, (HEADS, 3 * SIZE))


def apart(rngs):
    return OneDense(rngs, (3, HEADS, SIZE))


def after(rngs):
    return OneDense(rngs, (HEADS + 2 * 2, SIZE))


FORMS = {
    "flat": (Flat, 2, {"c_attn.kernel": (-1, "qkv"), "c_attn.bias": (-1, "qkv")}),
    "pair": (Pair, HEADS, {"to_kv.kernel": (-1, "kv"), "to_kv.bias": (-1, "kv")}),
    "after": (after, 2, {"qkv_proj.kernel": (-2, "qkv"), "qkv_proj.bias": (-2, "qkv")}),
    "apart": (apart, HEADS, {}),
    "within": (within, HEADS, {}),
}


@pytest.mark.parametrize("name", first(2, FORMS))
def test_one_parameter_loses_the_slices_of_its_heads(name):
    attention, kv, fused = FORMS[name]
    model = (houses.Scanned if name == "flat" else houses.Classifier)(attention)
    sites = headjax.attention_sites(model)
    for site in sites:
        assert (site.heads, site.kv_heads, site.head_dim) == (HEADS, kv, SIZE)
        assert dict(site.fused) == fused
        assert fused or {"qkv_proj.kernel": -2, "qkv_proj.bias": -2}.items() <= dict(site.query).items()
    removed = [head for site in sites for head in site.head_ids() if head.head in (0, 1)]
    pruned = headjax.prune(model, removed)
    expected = evaluated(without(model, removed), BATCH)
    assert_close(evaluated(pruned, BATCH), expected, sums=2 * SUMS)
    left = headjax.attention_sites(pruned)
    assert {(site.heads, site.kv_heads) for site in left} == {(2, kv // 2)}
    if name == "flat":
        losses = trained(pruned, BATCH, 5)
        assert losses[-1] < losses[0]


class Interleaved(Flat):
    """A flat map that holds queries, keys and values head by head."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        super().__init__(rngs, kv=HEADS)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.c_attn(x).reshape(*x.shape[:2], self.n_head, 3, self.head_dim)
        y = attend(*(y[:, :, :, number] for number in range(3)))
        return self.c_proj(y.reshape(*x.shape[:2], -1))


class Turned(houses.FlatAttention):
    """Contexts that are written entry by entry, and not head by head."""

    def attend(self, x: jax.Array) -> jax.Array:
        shape = (*x.shape[:2], self.num_heads, self.head_dim)
        y = attend(*(map_(x).reshape(shape) for map_ in (self.wq, self.wk, self.wv)))
        return self.wo(jnp.swapaxes(y, 2, 3).reshape(*x.shape[:2], -1))


class Tiled(houses.FlatAttention):
    """Head h reads KV head h modulo their number."""

    def attend(self, x: jax.Array) -> jax.Array:
        q, k, v = (map_(x).reshape(*x.shape[:2], -1, self.head_dim) for map_ in (self.wq, self.wk, self.wv))
        k, v = (jnp.tile(y, (1, 1, self.num_heads // self.num_kv_heads, 1)) for y in (k, v))
        return self.wo(attend(q, k, v).reshape(*x.shape[:2], -1))


def placed(cls: type) -> type:
    """A class whose layers need a mask and positions."""

    class Placed(cls):
        def __call__(self, x: jax.Array, attn_mask: jax.Array, positions: jax.Array) -> jax.Array:
            assert attn_mask.shape == (1, x.shape[1], x.shape[1])
            return cls.__call__(self, x + 0.1 * positions[..., None])

    return Placed


@pytest.mark.parametrize("wrap", [lambda cls: cls, placed], ids=["inputs", "positions"])
@pytest.mark.parametrize("cls, kv", [(Interleaved, {}), (Turned, {"kv": HEADS}), (Tiled, {})])
def test_flat_kernels_in_another_order_are_refused(cls, kv, wrap):
    with pytest.raises(headjax.HeadjaxError, match=r"layers\.0\.attn: .*one after another.*register_attention"):
        headjax.attention_sites(houses.Classifier(lambda rngs: wrap(cls)(rngs, **kv)))


def test_one_map_of_a_layer_that_needs_positions_is_found_and_pruned():
    pruned = headjax.prune(placed(Flat)(nnx.Rngs(0)), ["./0", "./1"])
    assert pruned.c_attn.kernel.shape == (WIDTH, 4 * SIZE)


def test_one_map_of_a_layer_that_cannot_be_called_alone_is_refused():
    class Masked(Flat):
        def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
            return super().__call__(x * mask[..., None])

    with pytest.raises(headjax.HeadjaxError, match=r"layers\.0\.attn: c_attn\.kernel.*register_attention\(.*Masked"):
        headjax.attention_sites(houses.Classifier(Masked))


@pytest.mark.parametrize(
    "fused, message",
    [
        ({"c_attn.kernel": (-1, "qkv")}, "may hold|does not run|something else"),
        ({"c_attn.kernel": (-1, "kqv"), "c_attn.bias": (-1, "kqv")}, "something else"),
        ({"c_attn.kernel": (-1, "qk"), "c_attn.bias": (-1, "qk")}, "c_attn.kernel"),
        ({"c_attn.kernel": (-1, "qxx"), "c_attn.bias": (-1, "qkv")}, "fused: c_attn.kernel"),
    ],
)
def test_a_wrong_order_of_a_registered_map_is_refused(fused, message):
    class Wrong(Flat):
        pass

    headjax.register_attention(Wrong, lambda layer: fused_view(layer, fused))
    with pytest.raises(headjax.HeadjaxError, match=message):
        headjax.prune(houses.Classifier(Wrong), ["layers.0.attn/0", "layers.0.attn/1"])


def test_code_that_takes_the_size_of_a_head_from_the_width_is_scored_and_not_pruned():
    class NanoGpt(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.config = Config(n_head=HEADS)
            self.c_attn = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs)
            self.c_proj = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

        def __call__(self, x: jax.Array, deterministic: bool = True) -> jax.Array:
            shape = (*x.shape[:2], self.config.n_head, x.shape[2] // self.config.n_head)
            y = attend(*(part.reshape(shape) for part in jnp.split(self.c_attn(x), 3, axis=-1)))
            return self.c_proj(y.reshape(*x.shape))

    model = houses.Classifier(NanoGpt)
    assert len(headjax.score_heads(model, [BATCH], loss=loss).score("importance")) == 2 * HEADS
    with pytest.raises(
        headjax.HeadjaxError, match=r"layers\.1\.attn: the code of .*NanoGpt does not run with 3 of its 4 heads"
    ):
        headjax.prune(model, ["layers.1.attn/0"])
