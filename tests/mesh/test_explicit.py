"""Meshes with explicit axes, as `jax.make_mesh` makes them, and with automatic ones."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import headjax
from headjax.mesh.rules import shardings
from tests import tiny
from tests.closeness import assert_close
from tests.nn.formulations import WIDTH, module, random_inputs
from tests.sites import houses
from tests.sites.houses import HOUSES, loss
from tests.tiny import flatten

TYPES = {"explicit": AxisType.Explicit, "automatic": AxisType.Auto}
MESHES = {
    "data": ((8,), ("data",)),
    "fsdp": ((2, 4), ("data", "fsdp")),
    "heads": ((2, 2), ("data", "model")),
    "model": ((2, 2, 2), ("data", "fsdp", "model")),
}


def mesh_of(name: str, kind: str = "explicit") -> Mesh:
    sizes, axes = MESHES[name]
    devices = jax.devices()[: np.prod(sizes)]
    return jax.make_mesh(sizes, axes, axis_types=(TYPES[kind],) * len(axes), devices=devices)


def examples_on(mesh: Mesh, tree: Any) -> Any:
    """Arrays whose examples are spread over the mesh's axes of examples."""
    axes = tuple(axis for axis in mesh.axis_names if axis != "model")
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(axes)))


def placed(layer: headjax.nn.AttentionModule, mesh: Mesh) -> headjax.nn.AttentionModule:
    """The layer with its weights where the rules place them."""
    places = shardings(tiny.weights(layer.kind, WIDTH, WIDTH), mesh)
    return layer.like(layer.kind, jax.device_put(layer.params, places))


@pytest.mark.parametrize(
    ("layer", "name", "kind"),
    [
        *((layer, "model", "explicit") for layer in ("multi_head", "grouped", "collaborative", "compressed")),
        ("latent_rotary", "fsdp", "explicit"),
        ("grouped", "model", "automatic"),
    ],
)
def test_layers_compute_and_train_on_a_mesh(layer, name, kind):
    alone, inputs = module(layer), random_inputs(batch=8)
    if name == "model" and alone.num_heads % 2:
        pytest.skip("its heads do not divide")
    mask = np.tril(np.ones((6, 6), bool))

    def value(layer: headjax.nn.AttentionModule, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        outputs = layer(inputs, mask=mask)
        return jnp.square(outputs).sum(), outputs

    step = nnx.jit(nnx.value_and_grad(value, has_aux=True))
    (_, expected), slopes = step(alone, inputs)
    mesh = mesh_of(name, kind)
    with jax.set_mesh(mesh):
        x = examples_on(mesh, inputs)
        (_, found), own = step(placed(alone, mesh), x)
    assert_close(jax.device_get(found), expected, sums=10 * WIDTH)
    assert found.sharding.is_equivalent_to(x.sharding, 3)
    slopes, own = flatten(_arrays(slopes)), jax.device_get(flatten(_arrays(own)))
    largest = max(float(np.abs(slope).max()) for slope in slopes.values())
    for path, slope in slopes.items():
        assert_close(own[path], slope, sums=100 * WIDTH, scale=largest, message=path)


def _arrays(gradient: Any) -> dict[str, Any]:
    return gradient.params if isinstance(gradient, headjax.nn.AttentionModule) else nnx.to_pure_dict(gradient)


def test_layers_need_no_mesh_set_and_stay_in_scans_and_maps():
    layer, inputs, mesh = module("grouped"), random_inputs(batch=8), mesh_of("data")
    x = examples_on(mesh, inputs)
    assert_close(jax.device_get(layer(x)), layer(inputs), sums=WIDTH)
    with jax.set_mesh(mesh):
        twice, _ = jax.lax.scan(lambda x, _: (layer(x), None), x, length=2)
        each = jax.vmap(lambda one: layer(one[None])[0])(x)
        again = jax.checkpoint(layer)(x)
    assert_close(jax.device_get(twice), layer(layer(inputs)), sums=16 * WIDTH)
    assert_close(jax.device_get(each), layer(inputs), sums=WIDTH)
    assert_close(jax.device_get(again), layer(inputs), sums=WIDTH)


def test_heads_that_do_not_divide_are_named_or_whole_on_every_device():
    layer, mesh = module("multi_head"), mesh_of("model")
    places = shardings(tiny.weights(layer.kind, WIDTH, WIDTH), mesh)
    with pytest.raises(headjax.HeadjaxError, match=r"^query: heads of size 3 .* mesh axis model=2"):
        shardings(tiny.weights(layer.config_after_pruning([0, 1, 2]), WIDTH, WIDTH), mesh)
    spread = layer.like(layer.kind, jax.device_put(layer.params, places))
    with jax.set_mesh(mesh):
        with pytest.warns(UserWarning, match=r"heads: 3 .* mesh axis model=2"):
            kept = spread.keep_heads([0, 1, 3])
        found = kept(examples_on(mesh, random_inputs(batch=8)))
    assert kept.query[...].sharding.spec == PartitionSpec("fsdp", None, None)
    assert spread.keep_heads([0, 3]).query[...].sharding.spec == PartitionSpec("fsdp", "model", None)
    assert_close(jax.device_get(found), layer.keep_heads([0, 1, 3])(random_inputs(batch=8)), sums=WIDTH)


@pytest.mark.parametrize(
    ("name", "given"), [("flax", loss), ("flat_remat", houses.mean_loss), ("scanned", loss), ("own", houses.mean_loss)]
)
def test_heads_of_any_model_are_scored_on_explicit_axes(name, given):
    model, (batch,) = HOUSES[name](), houses.batches(count=1, size=8)
    alone = headjax.score_heads(model, [batch], loss=given)
    mesh = mesh_of("data")
    with jax.set_mesh(mesh):
        found = headjax.score_heads(model, [examples_on(mesh, batch)], loss=given)
    assert found.values.keys() == alone.values.keys()
    for score, values in alone.values.items():
        assert_close(list(found.values[score].values()), list(values.values()), sums=8 * houses.SUMS, message=score)


def studied(model: Any, batches: list[Any], heads: list[Any]) -> list[np.ndarray]:
    """What scores, ablation, orders and learned gates say of any model."""
    found = headjax.score_heads(model, batches, loss=loss).values["importance"]
    ablated = headjax.ablate(model, batches, loss=loss, heads=heads).ablated["loss"]
    orders = [headjax.order_heads(model, batches, by, loss=loss) for by in ("ablation", "fisher")]
    gates = headjax.learn_gates(model, batches, headjax.Subset(count=3), steps=2, learning_rate=0.1, loss=loss)
    values = [np.array(list(each.values())) for each in (found, gates.logits)]
    return [*values, ablated, *(np.array([head.head for head in order]) for order in orders)]


@pytest.mark.parametrize(
    "name, kind", [("flax", "explicit"), pytest.param("scanned", "automatic", marks=pytest.mark.whole)]
)
def test_heads_of_any_model_are_removed_and_reconstructed_on_a_mesh(name, kind):
    model = HOUSES[name]()
    batches, mesh = houses.batches(size=8), mesh_of("heads", kind)
    model.eval()
    heads = [head for site in headjax.attention_sites(model) for head in site.head_ids() if head.head in (0, 2)]

    def all_of(model: nnx.Module, batches: list[Any]) -> list[np.ndarray]:
        repaired, value = headjax.reconstruct(model, batches, heads, loss=loss).model, nnx.jit(loss)
        left = [value(each, batch) for each in (headjax.prune(model, heads), repaired) for batch in batches]
        return [*studied(model, batches, heads), *jax.device_get(left)]

    expected = all_of(model, batches)
    with jax.set_mesh(mesh):
        found = all_of(model, examples_on(mesh, batches))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, sums=100 * houses.SUMS)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("data", "explicit"), pytest.param("model", "automatic", marks=pytest.mark.whole)],
)
def test_own_models_compute_are_scored_and_reconstructed_on_a_mesh(name, kind):
    model, mesh = tiny.model(tiny.decoder_config()), mesh_of(name, kind)
    batches = [tiny.tokens(batch=8, seed=seed) for seed in range(2)]
    heads = ["decoder/0/0", "decoder/1/2"]

    def studied(model: headjax.Model, batches: list[Any]) -> tuple[list[Any], list[str]]:
        output = jax.device_get(model(batches[0]))
        slope = nnx.jit(nnx.grad(lambda model, batch: model.losses(model(batch), batch).mean()))(model, batches[0])
        scores = headjax.score_heads(model, iter(batches)).values["importance"]
        ablated = headjax.ablate(model, batches, heads=heads).ablated["loss"]
        order = [str(head) for by in ("ablation", "reconstruction") for head in headjax.order_heads(model, batches, by)]
        found = headjax.reconstruct(model, batches, heads)
        losses = headjax.evaluate(found.model, batches)["loss"]
        converted = headjax.convert(model, "grouped:kv_heads=2")
        tokens = headjax.generate(converted.model, batches[0], max_new_tokens=2).tokens
        outputs = [jax.device_get(each(batches[0]).logits) for each in (found.model, converted.model)]
        slope = jax.device_get(slope.decoder.layers_0_1.attention.query[...])
        arrays = [output.logits, slope, list(scores.values()), ablated, losses, *outputs, jax.device_get(tokens)]
        return arrays, order

    expected, order = studied(model, batches)
    with jax.set_mesh(mesh):
        found, own_order = studied(model, [examples_on(mesh, batch) for batch in batches])
        logits = model(examples_on(mesh, batches[0])).logits
    assert logits.addressable_shards[0].data.shape[0] < 8, "every device has its own examples"
    assert own_order == order
    for one, other in zip(found, expected, strict=True):
        assert_close(np.asarray(one), np.asarray(other), sums=100 * tiny.SUMS)


@pytest.mark.parametrize("kind", TYPES)
def test_a_model_that_was_read_computes_under_any_mesh(kind, tmp_path):
    """Its arrays belong to no mesh of their own."""
    model, batch = tiny.model(tiny.decoder_config()), tiny.tokens(batch=8)
    model.save(tmp_path / "model")
    with jax.set_mesh(mesh_of("data", kind)):
        found = headjax.load(tmp_path / "model")(batch).logits
    assert_close(jax.device_get(found), model(batch).logits, sums=tiny.SUMS)


def test_an_own_model_is_deterministic_in_evaluation_mode():
    model, batch, rngs = tiny.model(tiny.decoder_config(dropout=0.5)), tiny.tokens(), nnx.Rngs(dropout=0)
    expected = model(batch).logits
    assert float(jnp.abs(model(batch, rngs=rngs).logits - expected).max()) > 1e-3
    np.testing.assert_array_equal(model(batch, rngs=rngs, deterministic=True).logits, expected)
    model.eval()
    np.testing.assert_array_equal(model.replace(history=())(batch, rngs=rngs).logits, expected)
    np.testing.assert_array_equal(model(batch, rngs=rngs).logits, expected)
