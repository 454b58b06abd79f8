"""Where heads lie in models that know nothing of headjax: found, registered, checked and refused."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import headjax
from tests.sites import houses
from tests.sites.houses import HEADS, HOUSES, SIZE, WIDTH


@pytest.mark.parametrize(
    "name, paths, numbers, output, query, key",
    [
        ("flax", ["layers.0.attn", "layers.1.attn"], (4, 4, 3), "out", {"query.kernel": -2, "value.bias": -2}, {}),
        ("flax_grouped", ["layers.0.attn", "layers.1.attn"], (4, 2, 2), "out", {"query.bias": -2}, {"key.bias": -2}),
        ("einsum", ["layers.0.attn", "layers.1.attn"], (4, 2, 3), "o_proj", {"q_bias": -1}, {"kv_einsum.w": -3}),
        ("flat_remat", ["layers.0.attn", "layers.1.attn"], (4, 2, 3), "wo", {"wq.bias": -1}, {"wk.bias": -1}),
        ("scanned", ["layers.attn"], (4, 2, 3), "o_proj", {"q_proj.w": -2}, {"kv_einsum.w": -3}),
        ("shared", ["layers.0.attn"], (4, 2, 3), "wo", {"wo.kernel": -2}, {"wv.kernel": -1}),
        ("own", ["layers.0.attn", "layers.1.attn"], (4, 2, 3), "output", {"output.kernel": -3}, {"key": -2}),
        ("scanned_own", ["layers.attn"], (4, 2, 3), "output", {"output.kernel": -3}, {"key": -2}),
    ],
)
def test_attention_layers_are_found(name, paths, numbers, output, query, key):
    sites = headjax.attention_sites(HOUSES[name]())
    assert [site.path for site in sites] == paths
    for site in sites:
        assert (site.heads, site.kv_heads, site.head_dim) == numbers
        assert site.output == output
        assert query.items() <= dict(site.query).items()
        assert key.items() <= dict(site.key).items()
        assert site.layers == (3 if name.startswith("scanned") else None)


def test_layers_are_in_the_order_of_their_numbers_and_a_layer_alone_has_a_name():
    sites = headjax.attention_sites(houses.Classifier(houses.EinsumAttention, layers=11))
    assert [site.path for site in sites] == [f"layers.{number}.attn" for number in range(11)]
    (alone,) = headjax.attention_sites(houses.flax_attention(nnx.Rngs(0)))
    assert str(alone.head_ids()[2]) == "./2"
    assert headjax.HeadId.parse("./2") == alone.head_ids()[2]


def test_a_layer_of_headjax_without_heads_is_passed_over():
    model = HOUSES["own"]()
    model.layers[0].attn = model.layers[0].attn.keep_heads([])
    assert [site.path for site in headjax.attention_sites(model, strict=True)] == ["layers.1.attn"]


class Odd(nnx.Module):
    """Attention under names that nobody else uses."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.nh = HEADS
        self.first = nnx.Param(rngs.params.normal((3, WIDTH, HEADS, SIZE)))
        self.last = houses.Einsum("...NH,NHD->...D", (HEADS, SIZE, WIDTH), rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        q, k, v = jnp.einsum("btd,cdnh->cbtnh", x, self.first[...])
        q, k, v = (y.reshape(*y.shape[:2], self.nh, SIZE) for y in (q, k, v))
        return self.last(jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", q, k)), v))


def odd_view(layer: Odd, **changes: object) -> headjax.AttentionSite:
    fields = {
        "heads": layer.nh,
        "kv_heads": layer.nh,
        "head_dim": SIZE,
        "output": "last",
        "kernel": "last.w",
        "query": {"first": -2, "last.w": -3},
        "sizes": {"nh": "heads"},
    }
    return headjax.AttentionSite(**(fields | changes))


def test_a_model_without_attention_is_told_what_was_looked_for():
    with pytest.raises(headjax.HeadjaxError, match=r"Classifier.*num_heads.*register_attention"):
        headjax.attention_sites(houses.Classifier(Odd))


def test_a_registered_class_is_scored_and_pruned():
    class Mine(Odd):
        pass

    headjax.register_attention(Mine, odd_view)
    model, batch = houses.Classifier(Mine), houses.batches(1)[0]
    assert len(headjax.score_heads(model, [batch], loss=houses.loss).score("importance")) == 2 * HEADS
    pruned = headjax.prune(model, ["layers.1.attn/0"])
    assert [layer.attn.nh for layer in pruned.layers] == [4, 3]
    assert pruned(batch["x"]).shape == (4, 3)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"query": {"first": -3, "last.w": -3}}, "first"),
        ({"query": {"first": -2, "last.w": -2}}, "last.w"),
        ({"query": {"first": -2}}, "last.w"),
        ({"heads": 3, "kv_heads": 3}, "3 heads"),
        ({"head_dim": 2}, "heads of 2"),
        ({"kernel": "last.kernel", "query": {"last.kernel": -3}}, "last.kernel"),
        ({"output": "first", "kernel": "first", "query": {"first": -4}}, "first"),
        ({"kv_heads": 3}, "3 groups"),
    ],
)
def test_a_wrong_registry_entry_is_refused(changes, message):
    class Wrong(Odd):
        pass

    headjax.register_attention(Wrong, lambda layer: odd_view(layer, **changes))
    with pytest.raises(headjax.HeadjaxError, match=message) as caught:
        headjax.attention_sites(houses.Classifier(Wrong))
    assert str(caught.value).startswith("layers.0.attn: ")
    assert "\n" not in str(caught.value)


def test_a_projection_that_does_more_than_its_kernel_is_refused():
    class Doubled(houses.Einsum):
        def __call__(self, x):
            return 2.0 * super().__call__(x)

    class Attention(houses.EinsumAttention):
        def __init__(self, rngs):
            super().__init__(rngs)
            self.o_proj = Doubled("BTNH,NHD->BTD", (HEADS, SIZE, WIDTH), rngs)

    with pytest.raises(headjax.HeadjaxError, match=r"layers\.0\.attn: .*o_proj.*register_attention\(.*Attention"):
        headjax.attention_sites(houses.Classifier(Attention))


def test_a_property_that_contradicts_the_arrays_is_refused():
    class Attention(houses.EinsumAttention):
        @property
        def num_heads(self):
            return self.q_proj.shape[0]

    with pytest.raises(headjax.HeadjaxError, match=r"layers\.0\.attn: its num_heads says 8.*register_attention"):
        headjax.attention_sites(houses.Classifier(Attention))
    plain = headjax.attention_sites(houses.Classifier(houses.EinsumAttention))[0]
    headjax.register_attention(Attention, lambda layer: dataclasses.replace(plain, path=""))
    assert headjax.attention_sites(houses.Classifier(Attention))[0].heads == HEADS


def test_experts_are_not_heads():
    class Experts(nnx.Module):
        def __init__(self, rngs):
            self.gate = houses.Einsum("BTD,EDF->BTEF", (2, WIDTH, 5), rngs)
            self.up = houses.Einsum("BTD,EDF->BTEF", (2, WIDTH, 5), rngs)
            self.down = houses.Einsum("BTEF,EFD->BTD", (2, 5, WIDTH), rngs)

    with pytest.raises(headjax.HeadjaxError, match="has no attention layer"):
        headjax.attention_sites(Experts(nnx.Rngs(0)))
