"""Attention that is not recognised is named; what is no attention, and what is recognised, is passed over."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx

import headjax
from tests.closeness import assert_close
from tests.sites import houses
from tests.sites.houses import HEADS, HOUSES, SIZE, SUMS, WIDTH, batches, loss, mean_loss, without
from tests.sites.test_sites import Odd

BATCHES = batches(1)


class Raw(nnx.Module):
    """Attention whose weights are arrays of its own."""

    def __init__(self, rngs):
        self.wq, self.wk, self.wv, self.wo = (nnx.Param(rngs.params.normal((WIDTH, WIDTH)) * 0.3) for _ in range(4))

    def __call__(self, x):
        q, k, v = ((x @ w[...]).reshape(*x.shape[:2], 2, -1) for w in (self.wq, self.wk, self.wv))
        return jax.nn.dot_product_attention(q, k, v).reshape(x.shape) @ self.wo[...]


class Core(nnx.Module):
    """A softmax without parameters."""

    def __call__(self, q, k, v):
        return jax.nn.softmax(q @ jnp.swapaxes(k, 1, 2)) @ v


class Inner(nnx.Module):
    """Attention of one head, under names that nobody else uses, whose core is a module of its own."""

    def __init__(self, rngs):
        self.all = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs)
        self.core, self.end = Core(), nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        return self.end(self.core(*jnp.split(self.all(x), 3, axis=-1)))


class ByBlocks(Inner):
    """The same, over blocks of keys, as kernels with little memory do it."""

    def __call__(self, x):
        q, k, v = jnp.split(self.all(x), 3, axis=-1)

        def block(sums, one):
            weights = jnp.exp(q @ jnp.swapaxes(one[0][:, None], 1, 2))
            return (sums[0] + weights @ one[1][:, None], sums[1] + weights.sum(-1, keepdims=True)), None

        start = (jnp.zeros_like(v), jnp.zeros((*v.shape[:2], 1)))
        (top, bottom), _ = jax.lax.scan(block, start, (jnp.swapaxes(k, 0, 1), jnp.swapaxes(v, 0, 1)))
        return self.end(top / bottom)


class Sigmoid(Raw):
    """Attention without a softmax."""

    def __call__(self, x):
        q, k, v = (x @ w[...] for w in (self.wq, self.wk, self.wv))
        return jax.nn.sigmoid(q @ jnp.swapaxes(k, 1, 2)) @ v @ self.wo[...]


class StateSpace(nnx.Module):
    """A state-space layer with decays that depend on the input, in its quadratic form (Mamba 2)."""

    def __init__(self, rngs):
        self.in_proj, self.out_proj = (nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(2))
        self.states = nnx.Linear(WIDTH, 8, rngs=rngs)
        self.dt = nnx.Linear(WIDTH, 1, rngs=rngs)

    def __call__(self, x):
        value, (b, c) = self.in_proj(x), jnp.split(self.states(x), 2, axis=-1)
        steps = jnp.cumsum(jax.nn.softplus(self.dt(x))[..., 0], axis=1)
        decay = jnp.tril(jnp.exp(steps[:, None, :] - steps[:, :, None]))
        mixed = jnp.einsum("btn,bsn,bts,bsd->btd", c, b, decay, value)
        return self.out_proj(mixed * jax.nn.silu(value))


class Linear(nnx.Module):
    """Linear attention: no softmax over keys, and nothing that could be removed head by head."""

    def __init__(self, rngs):
        self.mix, self.end = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs), nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        q, k, v = jnp.split(self.mix(x), 3, axis=-1)
        state = jnp.einsum("bsk,bsv->bskv", jax.nn.softmax(k), v).cumsum(axis=1)
        return self.end(jnp.einsum("btk,btkv->btv", jax.nn.softmax(q), state))


class Experts(nnx.Module):
    """A mixture of experts whose router has a softmax."""

    def __init__(self, rngs):
        self.router = nnx.Linear(WIDTH, 3, rngs=rngs)
        self.up = nnx.Param(rngs.params.normal((3, WIDTH, WIDTH)))

    def __call__(self, x):
        return jnp.einsum("bte,bted->btd", jax.nn.softmax(self.router(x)), jnp.einsum("btd,edf->btef", x, self.up[...]))


def mixed(attention):
    """A model of which the second layer is another one."""
    model = houses.Classifier(houses.FlatAttention)
    model.layers[1].attn = attention(nnx.Rngs(1))
    return model


CALLS = {
    "score_heads": {},
    "ablate": {"heads": ["layers.0.attn/0"]},
    "learn_gates": {"steps": 1, "learning_rate": 0.1, "distribution": headjax.Subset(count=3)},
}


@pytest.mark.parametrize("attention", [Raw, Odd, Inner, ByBlocks, Sigmoid])
def test_a_layer_that_is_not_recognised_is_named_once(attention):
    with pytest.warns(UserWarning, match="not recognised") as caught:
        scores = headjax.score_heads(mixed(attention), BATCHES, loss=mean_loss).score("importance")
    (text,) = (str(one.message) for one in caught)
    assert f"layers.1.attn ({attention.__name__})" in text
    assert "register_attention" in text
    assert "layers.0" not in text
    assert len(scores) == HEADS


@pytest.mark.parametrize("name", CALLS)
def test_it_is_an_error_where_all_are_wanted(name):
    call = getattr(headjax, name)
    with pytest.raises(headjax.HeadjaxError, match=r"layers\.1\.attn \(Raw\).*register_attention"):
        call(mixed(Raw), BATCHES, loss=loss, strict=True, **CALLS[name])
    with pytest.warns(UserWarning, match=r"layers\.1\.attn"):
        call(mixed(Raw), BATCHES, loss=loss, **CALLS[name])
    call(houses.Classifier(houses.FlatAttention), BATCHES, loss=loss, strict=True, **CALLS[name])


def test_layers_are_named_without_a_batch():
    with pytest.warns(UserWarning, match=r"layers\.1\.attn \(Raw\)"):
        assert len(headjax.attention_sites(mixed(Raw))) == 1
    with pytest.raises(headjax.HeadjaxError, match=r"layers\.1\.attn"):
        headjax.attention_sites(mixed(Raw), strict=True)


@pytest.mark.parametrize("attention", [StateSpace, Linear, Experts, houses.EinsumAttention])
def test_hybrids_are_whole(attention):
    headjax.score_heads(mixed(attention), BATCHES, loss=loss, strict=True)
    headjax.attention_sites(mixed(attention), strict=True)


def test_attention_outside_of_every_module_is_named():
    def pooled(model, batch):
        hidden = model.hidden(batch["x"])
        return (jax.nn.softmax(hidden @ jnp.swapaxes(hidden, 1, 2)) @ hidden).mean((1, 2))

    with pytest.warns(UserWarning, match=r"in \. \(Classifier\)"):
        headjax.score_heads(HOUSES["flat_remat"](), BATCHES, loss=pooled)


class Twice(linen.Module):
    """Two layers of Linen's attention."""

    @linen.compact
    def __call__(self, x):
        for name in ("first", "second"):
            x = x + linen.MultiHeadDotProductAttention(num_heads=HEADS, deterministic=True, name=name)(x)
        return linen.Dense(3, name="head")(x.mean(axis=1))


def test_layers_of_a_tree_that_are_no_sites_are_named():
    model = Twice()
    params = model.init(jax.random.key(0), BATCHES[0]["x"])
    sites = {name: (f"params/{name}/out/kernel", 0) for name in ("first", "second")}
    headjax.score_heads((model.apply, params, sites), BATCHES, loss=loss, strict=True)
    first = {"first": sites["first"]}
    with pytest.warns(UserWarning, match="Twice/second is not") as caught:
        headjax.score_heads((model.apply, params, first), BATCHES, loss=loss)
    assert len(caught) == 1


def adapted(places, linear, seed=2):
    """Flat attention with low-rank matrices that are not 0 in some projections of the upper layer."""
    model = houses.Classifier(houses.FlatAttention)
    layer, rngs = model.layers[1].attn, nnx.Rngs(seed)
    for name in places:
        old = getattr(layer, name)
        ends, random = (old.in_features, old.out_features), {"b_initializer": nnx.initializers.normal(0.5)}
        if linear:
            new = nnx.LoRALinear(*ends, lora_rank=2, use_bias=old.bias is not None, rngs=rngs, **random)
            nnx.update(new, nnx.state(old))
        else:
            new = nnx.LoRA(ends[0], 2, ends[1], base_module=old, rngs=rngs, **random)
        setattr(layer, name, new)
    return model


@pytest.mark.parametrize(("places", "linear"), [(["wq", "wv"], False), (["wq", "wk", "wv", "wo"], True)])
def test_heads_are_cut_from_the_sum_of_a_weight_and_its_low_rank_matrix(places, linear):
    model = adapted(places, linear)
    scores = headjax.score_heads(model, BATCHES, loss=loss, strict=True)
    assert len(scores.score("importance")) == 2 * HEADS
    removed = [headjax.HeadId("layers.*.attn", 1, 0), headjax.HeadId("layers.*.attn", 1, 2)]
    pruned = headjax.prune(model, removed)
    for one in (model, pruned):
        one.eval()
    merged = houses.Classifier(houses.FlatAttention)  # the sums as plain weights
    for name in places:
        plain, low = getattr(merged.layers[1].attn, name), getattr(model.layers[1].attn, name)
        low = low.lora if linear else low
        plain.kernel.set_value(plain.kernel[...] + low.lora_a[...] @ low.lora_b[...])
    merged.eval()
    x = BATCHES[0]["x"]
    assert_close(model(x), merged(x), sums=SUMS)
    wanted = without(merged, removed)
    assert_close(pruned(x), wanted(x), sums=SUMS)
    expected = headjax.score_heads(merged, BATCHES, loss=loss)
    for name in ("importance", "fisher"):
        found, other = (list(one.score(name).values()) for one in (scores, expected))
        assert_close(found, other, sums=4 * SUMS)
    found = headjax.attention_sites(pruned)
    assert [site.heads for site in found] == [HEADS, HEADS - 2]


def test_a_low_rank_matrix_of_another_kind_is_refused_by_name():
    model = houses.Classifier(houses.FlatAttention)
    model.layers[1].attn.wo.kernel_lora_a = nnx.LoRAParam(jnp.zeros((HEADS * SIZE, 2)))  # as Qwix has them
    with pytest.raises(headjax.HeadjaxError, match="kernel_lora_a"):
        headjax.prune(model, ["layers.1.attn/0", "layers.1.attn/2"])
