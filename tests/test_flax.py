"""A model as a `flax.nnx` module: what Flax, Optax and Orbax do with any module, they do with a model of headjax."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import treescope
from flax import nnx

import headjax
from headjax.core.modules import arrays
from headjax.mesh.rules import shardings
from tests import tiny
from tests.closeness import assert_close
from tests.heads.test_every_model import albert, t5
from tests.models.test_encoder import PADDED, config
from tests.selected import first
from tests.tiny import flatten


def decoder() -> tuple[headjax.Model, dict[str, Any]]:
    return tiny.model(tiny.decoder_config()), tiny.tokens()


def encoder() -> tuple[headjax.Model, dict[str, Any]]:
    labels = {"labels": PADDED["input_ids"], "next_sentence_label": np.array([0, 1])}
    return tiny.model(config(task=headjax.tasks.Pretraining(), num_layers=2)), PADDED | labels


def vision() -> tuple[headjax.Model, dict[str, Any]]:
    config = headjax.VisionConfig(
        width=tiny.WIDTH, num_layers=2, attention=tiny.multi_head(2), hidden=24, image_size=6, patch_size=3,
        task=headjax.tasks.Classification(classes=3),
    )  # fmt: skip
    images = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)
    return tiny.model(config), {"pixel_values": images, "labels": np.array([0, 2])}


EXAMPLES = {"decoder": decoder, "encoder": encoder, "albert": albert, "t5": t5, "vision": vision}


@pytest.fixture(params=first(3, EXAMPLES))
def example(request: pytest.FixtureRequest) -> tuple[headjax.Model, dict[str, Any]]:
    return EXAMPLES[request.param]()


def loss(model: headjax.Model, batch: dict[str, Any]) -> jax.Array:
    return model.losses(model(batch), batch).mean()


def hidden(model: headjax.Model, batch: dict[str, Any]) -> jax.Array:
    return model(batch).hidden


def by_path(tree: Any) -> dict[str, Any]:
    """Return the arrays of a state, or of the module that Flax gives as a gradient in its tree mode."""
    return flatten(arrays(tree) if isinstance(tree, nnx.Module) else nnx.to_pure_dict(tree))


def test_flax_and_jax_jit_a_model(example):
    model, batch = example
    for jitted in (nnx.jit(hidden), jax.jit(hidden)):
        assert_close(jitted(model, batch), hidden(model, batch), sums=tiny.SUMS)


def test_gradients_are_those_of_the_arrays(example):
    model, batch = example

    def plain(params: dict[str, Any]) -> jax.Array:
        return model.losses(headjax.Model(model.config, params).forward(batch), batch).mean()

    value, expected = jax.jit(jax.value_and_grad(plain))(model.params)
    found, gradient = nnx.jit(nnx.value_and_grad(loss))(model, batch)
    assert_close(found, value, sums=tiny.SUMS)
    assert by_path(gradient).keys() == flatten(expected).keys()
    largest = max(float(np.abs(slope).max()) for slope in flatten(expected).values())
    for path, slope in flatten(expected).items():
        assert_close(by_path(gradient)[path], slope, sums=tiny.SUMS, scale=largest, message=path)


def test_a_model_is_split_merged_copied_and_pickled_and_its_state_is_its_params(example):
    model, batch = example
    expected = hidden(model, batch)
    split, trees = nnx.split(model), nnx.split(model, graph=False)
    assert hash(split[0]) == hash(nnx.graphdef(copy.deepcopy(model)))
    for twin in (nnx.merge(*split), nnx.merge(*trees), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert isinstance(twin, headjax.Model)
        np.testing.assert_array_equal(hidden(twin, batch), expected)
        assert (twin.config, twin.history) == (model.config, model.history)
    state = by_path(nnx.state(model, nnx.Param))
    assert state.keys() == flatten(model.params).keys()
    assert all(state[path] is array for path, array in flatten(model.params).items()), "no array is copied"


def test_an_optimizer_of_flax_trains_a_model_as_optax_trains_its_arrays():
    model, batch = decoder()
    rule = optax.adamw(1e-2, eps=1e-3)
    params = model.params
    moments, expected = rule.init(params), []
    optimizer = nnx.Optimizer(model, rule, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, batch):
        value, gradient = nnx.value_and_grad(loss)(model, batch)
        optimizer.update(model, gradient)
        return value

    @jax.jit
    def plain(params, moments):
        def value(params):
            return model.losses(headjax.Model(model.config, params).forward(batch), batch).mean()

        found, gradient = jax.value_and_grad(value)(params)
        updates, moments = rule.update(gradient, moments, params)
        return found, optax.apply_updates(params, updates), moments

    for _ in range(4):
        value, params, moments = plain(params, moments)
        expected.append(value)
    found = [step(model, optimizer, batch) for _ in range(4)]
    assert_close(np.array(found), np.array(expected), sums=10 * tiny.SUMS)
    assert found[-1] < found[0]


def test_flax_derives_the_shardings_that_our_rules_give(example):
    model, batch = example
    mesh = headjax.MeshConfig(data=4, fsdp=2).build()
    state, expected = nnx.state(model, nnx.Param), hidden(model, batch)
    placed, ours = nnx.get_named_sharding(state, mesh), flatten(shardings(model.config.tensors(), mesh))
    assert by_path(placed).keys() == ours.keys()
    for path, sharding in by_path(placed).items():
        assert sharding.is_equivalent_to(ours[path], by_path(state)[path].ndim), path
    assert any("fsdp" in sharding.spec for sharding in ours.values())
    assert by_path(nnx.get_partition_spec(state)).keys() == ours.keys()
    nnx.update(model, jax.device_put(state, placed))
    assert_close(hidden(model, batch), expected, sums=tiny.SUMS)


def test_orbax_saves_and_restores_the_state(example, tmp_path):
    model, batch = example
    graphdef, state = nnx.split(copy.deepcopy(model))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "arrays", nnx.to_pure_dict(state))
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "arrays")
    assert flatten(restored).keys() == flatten(model.params).keys()
    nnx.update(state, jax.tree.map(np.zeros_like, state))
    nnx.replace_by_pure_dict(state, restored)
    np.testing.assert_array_equal(hidden(nnx.merge(graphdef, state), batch), hidden(model, batch))


def test_the_tree_of_modules_is_shown(capsys):
    model, _ = decoder()
    nnx.display(model)
    assert "Model: decoder" in capsys.readouterr().out
    page = treescope.render_to_text(model)
    for name in ("layers_0_1", "MultiHeadAttention", "FeedForward", "query"):
        assert name in page
