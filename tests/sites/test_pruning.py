"""Heads removed from models that know nothing of headjax: equal to the gated model, and the model still works."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx

import headjax
from headjax import HeadId, HeadjaxError
from headjax.sites.site import without
from tests.closeness import assert_close
from tests.selected import first
from tests.sites import houses
from tests.sites.houses import HEADS, HOUSES, SUMS, WIDTH, batches, scaled, snapshot, trained

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
}


def test_layers_of_headjax_along_one_axis_are_not_pruned():
    with pytest.raises(HeadjaxError, match=r"^layers\.attn: "):
        headjax.prune(HOUSES["scanned_own"](), [f"layers.attn.{layer}/0" for layer in range(3)])


def evaluated(model):
    copy = nnx.clone(model)
    copy.eval()
    return copy(BATCH["x"])


def parameters_of(model):
    return sum(array.size for array in jax.tree.leaves(nnx.state(model, nnx.Param)))


@pytest.mark.parametrize("name", first(4, REMOVED))
def test_a_pruned_model_equals_the_gated_one(name):
    model = HOUSES[name]()
    before = snapshot(model)
    sites = headjax.attention_sites(model)
    gates = without(sites, map(HeadId.parse, REMOVED[name]))
    pruned = headjax.prune(model, REMOVED[name])
    assert type(pruned) is type(model)
    assert parameters_of(pruned) < parameters_of(model)
    expected = scaled(model, gates)(BATCH["x"])
    sums, kind = (1, jnp.bfloat16) if name == "bf16" else (SUMS, np.float32)
    assert_close(evaluated(pruned), expected, sums=sums, dtype=kind)
    left = sum(len(site.head_ids()) for site in headjax.attention_sites(pruned))
    assert left == sum(len(site.head_ids()) for site in sites) - len(REMOVED[name])
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
    gates = without(headjax.attention_sites(model), map(HeadId.parse, removed))
    assert_close(
        pruned(x),
        scaled(model, gates)(x),
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
    assert (evaluated(again) == evaluated(pruned)).all()


def test_decoding_with_the_cache_of_the_class():
    attention = houses.flax_attention(nnx.Rngs(0), num_kv_heads=2, decode=True, dropout_rate=0.0)
    attention.init_cache((2, 4, WIDTH))
    x = jax.random.normal(jax.random.key(0), (2, 4, WIDTH))
    pruned = headjax.prune(attention, ["./0", "./1"])
    assert pruned.cached_key.shape == (2, 4, 1, 3)
    gated = scaled(attention, without(headjax.attention_sites(attention), map(HeadId.parse, ["./0", "./1"])))
    for position in range(4):
        one = x[:, position : position + 1]
        assert_close(pruned(one), gated(one), sums=SUMS)
    assert int(attention.cache_index[...]) == 0


@pytest.mark.parametrize(
    "name, heads, message",
    [
        ("flat_remat", ["layers.0.attn/0"], r"layers\.0\.attn: .*uniform"),
        ("flat_remat", [f"layers.0.attn/{head}" for head in range(HEADS)], r"layers\.0\.attn: all its heads"),
        ("scanned_flax", ["layers.attn.1/1"], r"layers\.attn: .*uniform"),
        ("flax", ["layers.2.attn/0"], r"head layers\.2\.attn/0"),
        ("flax", ["encoder/0/0"], "head encoder/0/0"),
        ("flax", ["layers.0.attn"], "layers.0.attn"),
    ],
)
def test_what_the_code_cannot_hold_is_refused(name, heads, message):
    model = HOUSES[name]()
    before = snapshot(model)
    with pytest.raises(HeadjaxError, match=message):
        headjax.prune(model, heads)
    assert snapshot(model)[0] == before[0]


def test_uniform_takes_as_many_of_every_group_as_every_group_names():
    model = HOUSES["flat_remat"]()
    order = [f"layers.{layer}.attn/{head}" for layer, head in [(0, 3), (0, 0), (1, 1), (0, 1), (1, 2), (1, 3)]]
    pruned = headjax.prune(model, order, uniform=True)
    gates = without(headjax.attention_sites(model), map(HeadId.parse, [*order[:3], order[4]]))
    assert_close(evaluated(pruned), scaled(model, gates)(BATCH["x"]), sums=SUMS)
    whole = [f"layers.{layer}.attn/{head}" for layer in (0, 1) for head in ((2, 3) if layer else (0, 1))]
    assert [layer.attn.num_kv_heads for layer in headjax.prune(model, whole, uniform=True).layers] == [1, 1]
    with pytest.raises(HeadjaxError, match="uniform"):
        headjax.prune(model, order[:2], uniform=True)


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
        with pytest.raises(HeadjaxError, match=rf"layers\.0\.attn: .*{word}"):
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
