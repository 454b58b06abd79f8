"""Heads removed from models that know nothing of headjax: equal to the gated model, and the model still works."""

import warnings

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx

import headjax
from tests.closeness import assert_close
from tests.selected import first
from tests.sites import houses
from tests.sites.houses import HEADS, HOUSES, SUMS, WIDTH, batches, evaluated, forward, snapshot, trained, without

BATCH = batches(1)[0]

REMOVED = {
    "flax": ["layers.0.attn/1", "layers.1.attn/0", "layers.1.attn/3"],
    "flax_grouped": ["layers.0.attn/2", "layers.0.attn/3", "layers.1.attn/0", "layers.1.attn/2"],
    "einsum": ["layers.0.attn/0", "layers.0.attn/1", "layers.1.attn/1", "layers.1.attn/2"],
    "flat_remat": ["layers.1.attn/1", "layers.1.attn/3"],
    "scanned": [f"layers.attn.{head}" for head in ("0/1", "0/2", "1/0", "1/3", "2/0", "2/2")],
    "scanned_flax": ["layers.attn.0/1", "layers.attn.1/0", "layers.attn.2/3"],
    "shared": ["layers.0.attn/0", "layers.0.attn/1"],
    "bf16": ["layers.0.attn/0", "layers.0.attn/2"],
    "own": ["layers.0.attn/0", "layers.1.attn/2", "layers.1.attn/3"],
    "scanned_own": [f"layers.attn.{head}" for head in ("0/0", "0/1", "1/2", "1/3", "2/0", "2/1")],
}


def heads_of(model):
    return [str(head) for site in headjax.attention_sites(model) for head in site.head_ids()]


def parameters_of(model):
    return sum(array.size for array in jax.tree.leaves(nnx.state(model, nnx.Param)))


@pytest.mark.parametrize("name", first(2, REMOVED))
def test_a_pruned_model_equals_the_gated_one(name):
    model = HOUSES[name]()
    before = snapshot(model)
    pruned = headjax.prune(model, REMOVED[name])
    assert type(pruned) is type(model)
    assert parameters_of(pruned) < parameters_of(model)
    expected = evaluated(without(model, REMOVED[name]), BATCH)
    sums, kind = (1, jnp.bfloat16) if name == "bf16" else (SUMS, np.float32)
    assert_close(evaluated(pruned, BATCH), expected, sums=sums, dtype=kind)
    assert heads_of(pruned) == [head for head in heads_of(model) if head not in REMOVED[name]]
    assert all((before[1][path] == array).all() for path, array in snapshot(model)[1].items())
    assert snapshot(model)[0] == before[0]


def test_static_sizes_are_in_step():
    attention = headjax.prune(HOUSES["flax_grouped"](), REMOVED["flax_grouped"]).layers[0].attn
    assert (attention.num_heads, attention.num_kv_heads, attention.qkv_features) == (2, 1, 4)
    assert (attention.query.out_features, attention.out.in_features) == ((2, 2), (2, 2))
    attention = headjax.prune(HOUSES["flat_remat"](), REMOVED["flat_remat"]).layers[1].attn
    assert (attention.num_heads, attention.num_kv_heads) == (2, 2)
    assert (attention.wq.out_features, attention.wo.in_features) == (6, 6)
    attention = headjax.prune(HOUSES["einsum"](), REMOVED["einsum"]).layers[1].attn
    assert (attention.n_rep, attention.o_proj.shape) == (1, (2, 3, WIDTH))


@pytest.mark.whole
@hypothesis.settings(max_examples=12)
@hypothesis.given(st.data(), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5))
def test_any_even_removal_of_any_shape(data, kv, group, size):
    heads, width = kv * group, 6
    model = houses.EinsumAttention(nnx.Rngs(0), heads=heads, kv=kv, size=size, width=width)
    kept_groups = data.draw(st.sets(st.integers(0, kv - 1), min_size=1))
    left = data.draw(st.integers(1, group))
    kept = {g * group + h for g in kept_groups for h in data.draw(st.permutations(range(group)))[:left]}
    removed = [f"./{head}" for head in range(heads) if head not in kept]
    x = jax.random.normal(jax.random.key(1), (2, 3, width))
    pruned = headjax.prune(model, removed)
    assert_close(
        pruned(x),
        without(model, removed)(x),
        sums=2 * width + 2 * heads * size,
        scale=1.0 + float(jnp.abs(model(x)).max()),
    )
    assert (pruned.n_rep, pruned.q_proj.w[...].shape[1]) == (left, len(kept))


def test_a_pruned_model_trains_and_saves(tmp_path):
    pruned = headjax.prune(HOUSES["flax"](), REMOVED["flax"])
    losses = trained(pruned, BATCH, 15)
    assert losses[-1] < 0.7 * losses[0]
    state = nnx.to_pure_dict(nnx.state(pruned, nnx.Param))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "pruned", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "pruned", jax.tree.map(jnp.zeros_like, state))
    again = headjax.prune(HOUSES["flax"](), REMOVED["flax"])
    target = nnx.state(again, nnx.Param)
    nnx.replace_by_pure_dict(target, restored)
    nnx.update(again, target)
    assert (evaluated(again, BATCH) == evaluated(pruned, BATCH)).all()


def test_decoding_with_the_cache_of_the_class():
    attention = houses.flax_attention(nnx.Rngs(0), num_kv_heads=2, decode=True, dropout_rate=0.0)
    attention.init_cache((2, 4, WIDTH))
    x = jax.random.normal(jax.random.key(0), (2, 4, WIDTH))
    pruned = headjax.prune(attention, ["./0", "./1"])
    assert pruned.cached_key.shape == (2, 4, 1, 3)
    gated = without(attention, ["./0", "./1"])
    for position in range(4):
        one = x[:, position : position + 1]
        assert_close(forward(pruned, one), forward(gated, one), sums=SUMS)
    assert int(attention.cache_index[...]) == 0


@pytest.mark.parametrize(
    "name, heads, message",
    [
        ("flat_remat", ["layers.0.attn/0"], r"layers\.0\.attn: .*share="),
        ("flat_remat", [f"layers.0.attn/{head}" for head in range(HEADS)], r"layers\.0\.attn: all its heads"),
        ("scanned_flax", ["layers.attn.1/1"], r"layers\.attn: .*share="),
        ("flax", ["layers.2.attn/0"], r"head layers\.2\.attn/0"),
        ("flax", ["encoder/0/0"], "head encoder/0/0"),
        ("flax", ["layers.0.attn"], "layers.0.attn"),
    ],
)
def test_what_the_code_cannot_hold_is_refused(name, heads, message):
    model = HOUSES[name]()
    before = snapshot(model)
    with pytest.raises(headjax.HeadjaxError, match=message):
        headjax.prune(model, heads)
    assert snapshot(model)[0] == before[0]


@pytest.mark.parametrize("name", first(2, ["flat_remat", "scanned", "flax", "shared", "own"]))
def test_a_share_is_taken_in_numbers_that_the_code_holds(name):
    """A larger share takes at least as many heads and parameters; the model computes as with gates at 0."""
    model = HOUSES[name]()
    heads = heads_of(model)
    order, went, sizes = [heads[at] for at in np.random.default_rng(0).permutation(len(heads))], [], []
    for share in (0.25, 0.5, 0.75):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pruned = headjax.prune(model, order, share=share)
        gone = [head for head in heads if head not in heads_of(pruned)]
        assert len(gone) <= share * len(heads)
        assert [str(one.message).partition(":")[0] for one in caught] == ["share"] * (len(gone) < share * len(heads))
        assert_close(evaluated(pruned, BATCH), evaluated(without(model, gone), BATCH), sums=SUMS)
        went.append(len(gone))
        sizes.append(parameters_of(pruned))
    assert went == sorted(went)
    assert sizes == sorted(sizes, reverse=True)


def test_groups_go_by_the_places_of_their_heads():
    """Whole ones first; then one head of every group that is left."""
    model = HOUSES["flat_remat"]()
    order = [f"layers.{layer}.attn/{head}" for layer, head in ("13", "00", "12", "11", "01", "10", "02", "03")]
    assert [layer.attn.num_heads for layer in headjax.prune(model, order, share=0.25).layers] == [4, 2]
    assert heads_of(headjax.prune(model, order, share=0.5)) == [order[at] for at in (6, 7, 5, 3)]
    pruned = headjax.prune(model, order, share=0.63)
    assert [(layer.attn.num_heads, layer.attn.num_kv_heads) for layer in pruned.layers] == [(2, 1), (1, 1)]
    with pytest.warns(UserWarning, match=r"^share: 6 heads go, not 8: every layer keeps one") as caught:
        headjax.prune(model, order, share=1.0)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=r"^share: 0 heads go, not 1: the least .* 2 heads, since KV groups"):
        headjax.prune(model, order, share=0.2)


@pytest.mark.parametrize("name", ["flax", "scanned_flax"])
def test_names_survive(name):
    model = HOUSES[name]()
    once = headjax.prune(model, REMOVED[name])
    left = [head for head in heads_of(model) if head not in REMOVED[name]]
    graph, state = nnx.split(once)
    nnx.update(once, nnx.state(once))
    passed = nnx.jit(lambda model: model)(once)
    assert all(heads_of(found) == left for found in (once, nnx.merge(graph, state), nnx.clone(once), passed))
    gone = list({head.rpartition("/")[0]: head for head in left}.values())  # the last one of every layer
    again = headjax.prune(once, gone)
    assert heads_of(again) == [head for head in left if head not in gone]
    with pytest.raises(headjax.HeadjaxError, match=f"head {gone[0]}: the model has no such head"):
        headjax.prune(again, gone)


def test_what_depends_on_the_number_of_heads_is_refused():
    class Scaled(houses.EinsumAttention):
        @property
        def scale(self):
            return (WIDTH / self.q_proj.shape[1]) ** -0.5

    class Sinks(houses.EinsumAttention):
        def __init__(self, rngs):
            super().__init__(rngs)
            self.sinks = nnx.Param(jnp.zeros(HEADS))

    for attention, word in ((Scaled, "scale"), (Sinks, "sinks")):
        with pytest.raises(headjax.HeadjaxError, match=rf"layers\.0\.attn: .*{word}"):
            headjax.prune(houses.Classifier(attention), ["layers.0.attn/0", "layers.0.attn/1"])


def test_configs_say_what_the_layers_have():
    class Attention(houses.EinsumAttention):
        def __init__(self, rngs):
            super().__init__(rngs)
            self.config = config

    config = houses.Config(HEADS, 2, 3)
    model = houses.Classifier(Attention)
    model.config = config
    even = headjax.prune(model, [f"layers.{layer}.attn/{head}" for layer in (0, 1) for head in (0, 1)])
    assert (even.config, even.layers[0].attn.config) == (houses.Config(2, 1, 3), houses.Config(2, 1, 3))
    ragged = headjax.prune(model, ["layers.0.attn/1", "layers.0.attn/2"])
    assert [ragged.config, *(layer.attn.config for layer in ragged.layers)] == [config, houses.Config(2, 2, 3), config]
    assert config == houses.Config(HEADS, 2, 3)
