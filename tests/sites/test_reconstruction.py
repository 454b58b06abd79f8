"""W_O of models that know nothing of headjax, solved anew without some heads."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import headjax
from tests import tiny
from tests.models.test_encoder import config as albert
from tests.selected import first
from tests.sites import houses
from tests.sites.houses import HOUSES, WIDTH, snapshot


class Fed(houses.Block):
    """A layer with a feed-forward."""

    def __init__(self, attention, rngs):
        super().__init__(attention, rngs)
        self.fc1 = nnx.Linear(WIDTH, 16, rngs=rngs)
        self.fc2 = nnx.Linear(16, WIDTH, rngs=rngs)

    def __call__(self, x):
        x = super().__call__(x)
        return x + self.fc2(nnx.gelu(self.fc1(x)))


def fed(attention=houses.EinsumAttention):
    model = houses.Classifier(attention)
    model.layers = nnx.List([Fed(attention, nnx.Rngs(seed)) for seed in (1, 2)])
    return model


def batches(seed, count):
    drawn = np.random.default_rng(seed)
    return [{"x": drawn.normal(size=(8, 6, WIDTH)).astype(np.float32)} for _ in range(count)]


def loss(model, batch):
    return jnp.square(model.hidden(batch["x"])).sum(axis=(1, 2))


CALIBRATION, OTHERS = batches(0, 4), batches(1, 2)


@nnx.jit
def streams(model):
    copy = nnx.clone(model)
    copy.eval()
    return jnp.concatenate([copy.hidden(batch["x"]) for batch in OTHERS])


def error(model, whole):
    """The squared error of the stream on other examples, over that of nothing."""
    found, expected = map(np.asarray, map(streams, (model, whole)))
    return np.square(found - expected).sum() / np.square(expected).sum()


@pytest.mark.parametrize("name", first(1, ["flax", "scanned", "flat_remat"]))
def test_a_head_that_another_one_can_stand_in_for_costs_nothing(name):
    model = HOUSES[name]()
    layers = [model.layers] if name == "scanned" else list(model.layers)
    for layer in layers:
        for path, axis in headjax.attention_sites(layer)[0].query:
            holder, _, part = path.rpartition(".")
            variable = getattr(getattr(layer.attn, holder) if holder else layer.attn, part)
            if holder not in ("out", "o_proj", "wo"):
                array = jnp.moveaxis(variable[...], axis, 0)
                size = 3 if array.shape[0] == 12 else 1
                for head in (1, 3):
                    array = array.at[head * size : (head + 1) * size].set(array[(head - 1) * size : head * size])
                variable.set_value(jnp.moveaxis(array, 0, axis))
    removed = [head for site in headjax.attention_sites(model) for head in site.head_ids() if head.head % 2]
    before = snapshot(model)
    found = headjax.reconstruct(model, CALIBRATION, removed, loss=loss)
    assert error(headjax.prune(model, removed), model) > 1e-3
    assert error(found.model, model) < 1e-6
    assert len(found.layers) == len(removed) // 2
    assert all(repair.kept and repair.held_out < 1e-4 for repair in found.layers)
    assert found.examples == 32
    assert found.tokens == 32 * 6
    assert all((before[1][path] == array).all() for path, array in snapshot(model)[1].items())


def test_second_maps_of_feed_forwards_mend_more():
    model = fed()
    removed = [f"layers.{layer}.attn/{head}" for layer in (0, 1) for head in (0, 1)]
    plain = error(headjax.prune(model, removed), model)
    attention = headjax.reconstruct(model, CALIBRATION, removed, loss=loss)
    both = headjax.reconstruct(model, CALIBRATION, removed, loss=loss, feed_forward=True)
    assert error(attention.model, model) < plain
    assert error(both.model, model) < error(attention.model, model)
    assert [repair.name for repair in both.layers] == ["layers.0.attn", "layers.0", "layers.1.attn", "layers.1"]


def test_what_the_code_cannot_hold_is_known_before_anything_is_computed():
    def never(model, batch):
        raise AssertionError("computed")

    model, order = HOUSES["flat_remat"](), [f"layers.{layer}.attn/{head}" for layer in (0, 1) for head in range(4)]
    with pytest.raises(headjax.HeadjaxError, match=r"layers\.0\.attn: .*share="):
        headjax.reconstruct(model, CALIBRATION, order[:1], loss=never)
    found = headjax.reconstruct(model, CALIBRATION, order[1:] + order[:1], share=0.5, loss=loss)
    assert [str(head) for head in found.removed] == [order[at] for at in (2, 3, 4, 5)]


def test_padding_does_not_count():
    model = houses.Classifier(houses.EinsumAttention, layers=1)
    removed = ["layers.0.attn/1", "layers.0.attn/2"]

    def first_four(model, batch):
        return jnp.square(model.hidden(batch["x"])[:, :4]).sum(axis=(1, 2))

    assert headjax.reconstruct(model, CALIBRATION, removed, loss=first_four).tokens == 32 * 4


def test_layers_of_headjax_in_a_users_model_are_reconstructed_and_shrunk():
    model = HOUSES["scanned_own"]()
    removed = [f"layers.attn.{layer}/{head}" for layer in range(3) for head in (0, 1)]
    found = headjax.reconstruct(model, CALIBRATION, removed, loss=loss)
    assert error(found.model, model) < error(headjax.prune(model, removed), model)
    assert error(found.repaired, found.model) < 1e-6
    smaller = headjax.shrink(model, CALIBRATION, headjax.Budget(parameters=0.8), loss=loss)
    assert sum(site.shape[-1] for site in headjax.attention_sites(smaller.model)) < 4 * 3


@pytest.mark.parametrize("config", [tiny.decoder_config(*[tiny.layer()] * 3), albert("albert", num_layers=2)])
def test_a_model_of_headjax_is_reconstructed_by_its_walk_or_for_a_loss(config):
    model = tiny.model(config)
    batches = [tiny.tokens(16, 12, seed) for seed in range(3)]
    first = headjax.all_heads(model.config)[0]

    def own(model, batch):
        return jnp.square(model(batch).hidden).sum(axis=(1, 2))

    pruned = headjax.prune(model, [first])
    found = headjax.reconstruct(model, batches, [first], loss=own)
    assert headjax.all_heads(found.model.config) == headjax.all_heads(pruned.config)
    assert found.model.history[-2]["action"] == "reconstruct"
    for kept in (found, headjax.reconstruct(model, batches, [first])):
        lost = [float(jnp.square(m(batches[0]).hidden - model(batches[0]).hidden).mean()) for m in (kept.model, pruned)]
        assert lost[0] < lost[1]
    with pytest.raises(headjax.HeadjaxError, match=r"^units: needs a model that offers the walk"):
        headjax.reconstruct(model, batches, [first], loss=own, units=0.5)


@pytest.mark.parametrize("name", ["flax_grouped", "scanned_own", "albert"])
def test_any_model_is_ordered_by_what_refitted_heads_leave(name):
    """Heads that write nothing go first; whole KV groups and layers that share parameters stay together."""
    if name in HOUSES:
        model, inputs = HOUSES[name](), CALIBRATION
    else:
        model = tiny.model(albert("albert", num_layers=2))
        inputs = [tiny.tokens(8, 12, seed) for seed in range(2)]

    def hidden(model, batch):
        return model.hidden(batch["x"]) if name in HOUSES else model(batch).hidden

    def own(model, batch):
        return jnp.square(hidden(model, batch) - batch["target"]).sum(axis=(1, 2))

    sites = headjax.attention_sites(model)
    idle = [site.head_ids()[-1] for site in sites]
    model = houses.without(model, idle)
    batches = [batch | {"target": hidden(model, batch) + 0.01} for batch in inputs]
    order = headjax.order_heads(model, batches, "reconstruction", loss=own)
    assert sorted(order) == sorted(head for site in sites for head in site.head_ids())
    depths = len(sites[0].places) if sites[0].tied else 1
    assert set(idle) <= set(order[: len(idle) * depths])
    assert [head.head for head in order[:depths]] == [order[0].head] * depths
    whole = headjax.order_heads(model, batches, headjax.OrderConfig(by="reconstruction", whole_groups=True), loss=own)
    heads = [(head, site.groups[place % site.heads]) for site in sites for place, head in enumerate(site.head_ids())]
    groups = [
        {head for head, _ in group}
        for _, group in itertools.groupby(heads, key=lambda each: (each[0].stack, each[0].layer, each[1]))
    ]
    if depths == 1:
        starts = np.cumsum([0] + [len(groups[0])] * (len(groups) - 1))
        assert all(set(whole[start : start + len(groups[0])]) in groups for start in starts)


@pytest.mark.parametrize(
    "model, batches, options, message",
    [
        (HOUSES["shared"], CALIBRATION, {}, "layers.0.attn"),
        (HOUSES["flax"], [], {}, "batches"),
        (HOUSES["flax"], [{"x": CALIBRATION[0]["x"][:1]}], {}, "calibration"),
        (HOUSES["flax"], CALIBRATION, {"feed_forward": True}, "feed_forward"),
        (HOUSES["flax"], CALIBRATION, {"units": 0.5}, "units"),
        (HOUSES["flax"], CALIBRATION, {"removed": ["layers.0.attn/4"]}, "layers.0.attn/4"),
    ],
)
def test_what_cannot_be_solved_is_one_line(model, batches, options, message):
    options = {"removed": ["layers.0.attn/0", "layers.0.attn/1"]} | options
    with pytest.raises(headjax.HeadjaxError, match=message):
        headjax.reconstruct(model(), batches, loss=loss, **options)
