"""Scores, ablation and learned gates of models that know nothing of headjax, against gates multiplied into W_O."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from jax.sharding import NamedSharding, PartitionSpec

import headjax
from tests.closeness import assert_close
from tests.selected import first
from tests.sites import houses
from tests.sites.houses import HEADS, HOUSES, SIZE, SUMS, WIDTH, batches, loss, mean_loss, scaled

BATCHES = batches()


def gates_of(model):
    return {site.path: jnp.ones(site.shape) for site in headjax.attention_sites(model)}


def by_hand(model, gates):
    """Gradients of every example's loss, `[examples]` trees, from one example at a time."""
    gradient = jax.jit(jax.grad(lambda xi, one: loss(scaled(model, xi), one).sum()))
    examples = [{name: array[i : i + 1] for name, array in batch.items()} for batch in BATCHES for i in range(4)]
    found = [gradient(gates, one) for one in examples]
    return {path: np.stack([np.asarray(tree[path], np.float64) for tree in found]) for path in gates}


def flat(values, model):
    """Values by head as arrays by site."""
    return {
        site.path: np.array([values[head] for head in site.head_ids()]).reshape(site.shape)
        for site in headjax.attention_sites(model)
    }


@pytest.mark.parametrize("name", first(4, dict.fromkeys(["scanned", "flax", "own", "bf16", *HOUSES])))
def test_gradient_scores_are_those_of_gates_multiplied_into_the_weights(name):
    model, given = HOUSES[name](), mean_loss if name == "scanned" else loss
    scores = headjax.score_heads(model, BATCHES, loss=given)
    expected = by_hand(model, gates_of(model))
    # bfloat16 rounds contexts and outputs alone; sums and everything after them are in float32.
    sums, kind = (1, jnp.bfloat16) if name == "bf16" else (4 * SUMS, np.float32)
    for path, gradient in expected.items():
        scale = np.abs(gradient).max()
        found = {score: flat(scores.score(score), model)[path] for score in ("importance", "fisher")}
        assert_close(found["importance"], np.abs(gradient).mean(0), sums=sums, scale=scale, dtype=kind)
        assert_close(found["fisher"], (gradient**2).sum(0), sums=sums, scale=8 * scale**2, dtype=kind)
    assert scores.examples == 8
    assert_close(
        scores.loss,
        np.mean([mean_loss(scaled(model, gates_of(model)), batch) for batch in BATCHES]),
        sums=sums,
        dtype=kind,
    )


def test_heads_are_named_by_path_and_number():
    scores = headjax.score_heads(HOUSES["flax"](), BATCHES, loss=loss)
    head = headjax.HeadId("layers.*.attn", 1, 3)
    assert str(head) == "layers.1.attn/3"
    assert headjax.HeadId.parse("layers.1.attn/3") == head
    assert head in scores.score("importance")
    assert len(scores.score("importance")) == 2 * HEADS
    in_scan = list(headjax.score_heads(HOUSES["scanned"](), BATCHES, loss=loss).score("fisher"))
    assert str(in_scan[5]) == "layers.attn.1/1"
    assert headjax.HeadId.parse(str(in_scan[5])) == in_scan[5]


def test_positions_without_influence_do_not_count():
    model = houses.Classifier(houses.EinsumAttention, layers=1)
    model.eval()

    def first_two(model, batch):
        return model.hidden(batch["x"])[:, :2].sum(axis=(1, 2))

    def gated(gates):  # one for every position
        return first_two(headjax.gated(model, {"layers.0.attn": gates}), BATCHES[0]).sum()

    slopes = jax.jit(jax.grad(gated))(jnp.ones((4, 5, HEADS)))
    tokens = headjax.score_heads(model, BATCHES[:1], loss=first_two).score("importance_token")
    assert_close(list(tokens.values()), jnp.abs(slopes).sum((0, 1)) / (4 * 2), sums=SUMS)


@pytest.mark.parametrize("mode", ["each", "all-but-one", "group"])
def test_ablation_is_gating_by_hand(mode):
    model = HOUSES["einsum"]()
    found = headjax.ablate(model, BATCHES, mode, loss=loss, metrics={"right": right}, heads=["layers.1.attn/2"])
    gates, losses = gates_of(model), jax.jit(lambda gates, batch: loss(scaled(model, gates), batch))
    row = {"each": [1, 1, 0, 1], "all-but-one": [0, 0, 1, 0], "group": [1, 1, 0, 0]}[mode]
    whole, without = (
        np.concatenate([losses(at, batch) for batch in BATCHES])
        for at in (gates, gates | {"layers.1.attn": jnp.array(row, jnp.float32)})
    )
    assert_close(found.baseline["loss"], whole, sums=SUMS)
    assert_close(found.ablated["loss"][0], without, sums=SUMS)
    assert set(found.baseline["right"]) <= {0.0, 1.0}


def right(model, batch):
    return (model(batch["x"]).argmax(axis=-1) == batch["y"]).astype(jnp.float32)


def test_heads_without_weights_are_the_first_of_every_order():
    model = HOUSES["einsum"]()
    useless = {"layers.0.attn/1", "layers.1.attn/2"}
    for name in useless:
        kernel = model.layers[int(name[7])].attn.o_proj.w
        kernel.set_value(kernel[...].at[int(name[-1])].set(0.0))
    names = ("importance", "importance_layer", "importance_token", "fisher")
    orders = {by: headjax.order_heads(model, BATCHES, by, loss=loss) for by in names}
    scores = headjax.score_heads(model, BATCHES, loss=loss)
    for by, order in orders.items():
        assert order == tuple(sorted(order, key=lambda head: (scores.score(by)[head], head)))
    ablation = headjax.ablate(model, BATCHES, loss=loss)
    effects = ablation.effects()
    assert headjax.order_heads(model, BATCHES, "ablation", loss=loss) == tuple(
        sorted(effects, key=lambda head: (effects[head], head))
    )
    orders["ablation"] = tuple(sorted(effects, key=lambda head: abs(effects[head])))
    for by, order in orders.items():
        assert {str(head) for head in order[:2]} == useless, by


@pytest.mark.parametrize("by", ["hies", "importance_token"])
def test_an_order_that_a_model_does_not_have_is_refused_by_name(by):
    linen_params = LinenTwin().init(jax.random.key(0), BATCHES[0]["x"])
    tree = (LinenTwin().apply, linen_params, {"attn": ("params/attn/out/kernel", 0)})
    model = tree if by == "importance_token" else HOUSES["einsum"]()  # trees of arrays have no positions
    with pytest.raises(headjax.HeadjaxError, match=f"^by: {by}: .* has importance, .*fisher, .*random$"):
        headjax.order_heads(model, BATCHES, by, loss=loss)


def test_one_compilation_serves_all_batches_and_gates():
    traced = []

    def counted(model, batch):
        traced.append(None)
        return loss(model, batch)

    def traces(function, *args, **kwargs):
        traced.clear()
        function(HOUSES["flax"](), *args, loss=counted, **kwargs)
        return len(traced)

    assert traces(headjax.score_heads, BATCHES * 3) == traces(headjax.score_heads, BATCHES)
    one = traces(headjax.ablate, BATCHES, heads=["layers.0.attn/0"])
    assert traces(headjax.ablate, BATCHES * 3, "all-but-one") == one


def test_scores_at_gates_are_gradients_there():
    model = HOUSES["flax"]()
    gates = gates_of(model) | {"layers.0.attn": jnp.array([1.0, 0.0, 0.5, 2.0])}
    found = headjax.score_heads(model, BATCHES, loss=loss, gates=gates)
    expected = np.abs(by_hand(model, gates)["layers.0.attn"]).mean(0)
    assert_close(flat(found.score("importance"), model)["layers.0.attn"], expected, sums=4 * SUMS)


def test_a_sharded_model_has_the_same_scores():
    model = HOUSES["scanned"]()
    alone = headjax.score_heads(model, [BATCHES[0]], loss=loss).score("importance")
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    graph, state = nnx.split(model)

    def placed(array):
        spec = PartitionSpec("model") if array.ndim > 1 and array.shape[0] % 2 == 0 else PartitionSpec()
        return jax.device_put(array, NamedSharding(mesh, spec))

    spread = nnx.merge(graph, jax.tree.map(placed, state))
    batch = {
        key: jax.device_put(array, NamedSharding(mesh, PartitionSpec("data"))) for key, array in BATCHES[0].items()
    }
    with jax.set_mesh(mesh):
        found = headjax.score_heads(spread, [batch], loss=loss).score("importance")
    assert_close(list(found.values()), list(alone.values()), sums=4 * SUMS)


class LinenTwin(linen.Module):
    """The Linen form of one layer of Flax's attention."""

    @linen.compact
    def __call__(self, x):
        x = linen.MultiHeadDotProductAttention(
            num_heads=HEADS, qkv_features=HEADS * SIZE, deterministic=True, name="attn"
        )(x)
        return linen.Dense(3, name="head")(x.mean(axis=1))


def assert_scores_are_those_of_gates(apply, params, place, scaled, given):
    """`scaled` multiplies W_O in the tree by gates `[heads]`."""
    model, ones = (apply, params, {"attn": place}), jnp.ones(HEADS)

    @jax.jit
    def losses(gates):
        return jnp.concatenate([loss(functools.partial(apply, scaled(params, gates)), batch) for batch in BATCHES])

    found, gradient = headjax.score_heads(model, BATCHES, loss=given), jax.jit(jax.jacrev(losses))(ones)
    assert set(found.values) == {"importance", "importance_layer", "fisher"}
    assert [str(head) for head in found.score("importance")] == [f"attn/{head}" for head in range(HEADS)]
    assert_close(list(found.score("importance").values()), jnp.abs(gradient).mean(0), sums=4 * SUMS)
    assert_close(list(found.score("fisher").values()), jnp.square(gradient).sum(0), sums=4 * SUMS)
    effects = [losses(ones.at[head].set(0.0)).mean() - losses(ones).mean() for head in range(HEADS)]
    assert_close(list(headjax.ablate(model, BATCHES, loss=given).effects().values()), effects, sums=SUMS, scale=1.0)


@pytest.mark.parametrize("given", [loss, mean_loss])
def test_a_linen_model_has_the_scores_of_gates_multiplied_into_its_weights(given):
    twin = LinenTwin()
    params = twin.init(jax.random.key(0), BATCHES[0]["x"])

    def scaled(params, gates):
        return jax.tree_util.tree_map_with_path(
            lambda path, array: array * gates[:, None, None] if "'out'" in str(path) and array.ndim == 3 else array,
            params,
        )

    assert_scores_are_those_of_gates(twin.apply, params, ("params/attn/out/kernel", 0), scaled, given)


@pytest.mark.parity
@pytest.mark.parametrize("given", [loss, mean_loss])
def test_an_equinox_model_has_the_scores_of_gates_multiplied_into_its_weights(given):
    equinox = pytest.importorskip("equinox", reason="needs Equinox")
    attention = equinox.nn.MultiheadAttention(HEADS, WIDTH, qk_size=SIZE, vo_size=SIZE, key=jax.random.key(0))
    params, static = equinox.partition(attention, equinox.is_array)
    head = jax.random.normal(jax.random.key(1), (WIDTH, 3))

    def apply(params, x):
        layer = equinox.combine(params, static)
        return jax.vmap(lambda x: layer(x, x, x))(x).mean(axis=1) @ head

    def scaled(params, gates):
        gates = jnp.repeat(gates, SIZE)[None]
        return equinox.tree_at(lambda tree: tree.output_proj.weight, params, replace_fn=lambda array: array * gates)

    assert_scores_are_those_of_gates(apply, params, ("output_proj/weight", 1, HEADS), scaled, given)


@pytest.mark.parametrize(
    "place, message",
    [
        (("params/attn/out/kernel", 0, 3), "3 heads"),
        (("params/attn/output/kernel", 0), "params/attn/output/kernel"),
        (("params/attn/out/kernel", 3), "axis 3"),
    ],
)
def test_a_place_that_the_tree_lacks_is_refused(place, message):
    twin = LinenTwin()
    params = twin.init(jax.random.key(0), BATCHES[0]["x"])
    with pytest.raises(headjax.HeadjaxError, match=message):
        headjax.score_heads((twin.apply, params, {"attn": place}), BATCHES, loss=loss)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"loss": None}, "loss"),
        ({"loss": lambda model, batch: model(batch["x"])}, "loss"),
        ({"loss": lambda model, batch: batch["x"].sum(axis=(1, 2))}, "layers.0.attn"),
        ({"loss": lambda model, batch: loss(model, batch) * jnp.nan}, "layers.0.attn/0"),
        ({"loss": loss, "batches": []}, "batches"),
        ({"loss": loss, "gates": {"layers.9.attn": jnp.ones(HEADS)}}, "gates: .*layers.9.attn"),
        ({"loss": loss, "gates": {"layers.0.attn": jnp.ones(1)}}, "gates: layers.0.attn"),
    ],
)
def test_what_cannot_be_scored_is_one_line(arguments, message):
    options = {"batches": BATCHES} | arguments
    with pytest.raises(headjax.HeadjaxError, match=message) as caught:
        headjax.score_heads(HOUSES["flax"](), options.pop("batches"), **options)
    assert "\n" not in str(caught.value)


def test_a_head_that_is_not_there_is_named():
    with pytest.raises(headjax.HeadjaxError, match=r"layers\.0\.attn/9"):
        headjax.ablate(HOUSES["flax"](), BATCHES, loss=loss, heads=["layers.0.attn/9"])


COARSE = headjax.Compute(dtype="bfloat16")
FOREIGN = {
    "score_heads": ({}, {"statistics": ("entropy",), "compute": COARSE}),
    "ablate": ({}, {"compute": COARSE}),
    "learn_gates": ({"steps": 1, "learning_rate": 0.1, "distribution": headjax.Subset(count=7)}, {"compute": COARSE}),
    "reconstruct": ({"removed": ["layers.0.attn/0"]}, {"compute": COARSE, "units": 0.5}),
}
"""By function, what it needs, and what a model that is not headjax's cannot use."""


@pytest.mark.parametrize("name, argument", [(name, one) for name, (_, others) in FOREIGN.items() for one in others])
def test_a_flax_model_refuses_what_only_headjax_models_take(name, argument):
    needed, others = FOREIGN[name]
    given = {argument: others[argument]}
    with pytest.raises(headjax.HeadjaxError, match=f"^{argument}: "):
        getattr(headjax, name)(HOUSES["einsum"](), BATCHES, loss=loss, **needed, **given)
