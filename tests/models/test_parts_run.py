"""What is set on a model is what runs: in its calls, under `nnx.jit`, in scores and in ablation, with any loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import headjax
from tests import tiny
from tests.closeness import assert_close, assert_numbers_close, close_to
from tests.sites import houses
from tests.sites.houses import SUMS

BATCH = tiny.tokens(3, 8)
GROUP = "layers_0_1"
"""The scanned layers of the model."""


def decoder() -> headjax.Model:
    """A decoder of two equal layers, which are scanned."""
    return tiny.model(tiny.decoder_config())


def attention_of(model: headjax.Model) -> Any:
    return getattr(model.decoder, GROUP).attention


def same_everywhere(model: headjax.Model, expected: headjax.Model) -> None:
    """Asserts that two models compute the same in every way."""
    logits, heads = np.asarray(expected(BATCH).logits), ["decoder/0/1", "decoder/1/3"]
    assert_close(model(BATCH).logits, logits, sums=tiny.SUMS)
    assert_close(nnx.jit(lambda model, batch: model(batch).logits)(model, BATCH), logits, sums=tiny.SUMS)
    found, wanted = (headjax.score_heads(each, [BATCH]) for each in (model, expected))
    assert found.loss == close_to(wanted.loss, sums=tiny.SUMS)
    assert found.values.keys() == wanted.values.keys()
    for name, values in wanted.values.items():
        assert_numbers_close(found.score(name), values, sums=2 * tiny.SUMS, name=name)
    effects, others = (headjax.ablate(each, [BATCH], heads=heads).ablated["loss"] for each in (model, expected))
    assert_close(effects, others, sums=tiny.SUMS)


def test_an_assigned_weight_is_the_weight_that_runs():
    model = decoder()
    kernel = attention_of(model).output.kernel
    attention_of(model).output.kernel = nnx.Param(kernel[...].at[1, 3].set(0.0))
    params = decoder().params
    output = params["decoder"][GROUP]["attention"]["output"]
    output["kernel"] = output["kernel"].at[1, 3].set(0.0)
    same_everywhere(model, decoder().replace(params=params))
    assert headjax.score_heads(model, [BATCH]).score("fisher")[headjax.HeadId("decoder", 1, 3)] == 0.0
    assert_close(model(BATCH).logits, headjax.gated(decoder(), {"decoder/1/3": 0.0})(BATCH).logits, sums=tiny.SUMS)


def test_an_assigned_attention_of_another_class_is_the_attention_that_runs(tmp_path):
    @nnx.split_rngs(splits=2)
    @nnx.vmap(in_axes=(0,), out_axes=0)
    def stacked(rngs: nnx.Rngs) -> nnx.Module:
        return headjax.GroupedAttention(tiny.WIDTH, num_heads=4, kv_heads=2, head_dim=4, rngs=rngs)

    model, layer = decoder(), tiny.layer(headjax.Kind(headjax.GroupedAttention, num_heads=4, kv_heads=2, head_dim=4))
    params, grouped = model.params, stacked(nnx.Rngs(3))
    getattr(model.decoder, GROUP).attention = grouped
    params["decoder"][GROUP]["attention"] = nnx.to_pure_dict(nnx.state(grouped, nnx.Param))
    same_everywhere(model, tiny.model(tiny.decoder_config(layer, layer)).replace(params=params))
    assert {site.kv_heads for site in headjax.attention_sites(model)} == {2}
    with pytest.raises(headjax.ParameterError, match="attention: is a GroupedAttention, where the config describes"):
        model.save(tmp_path / "model")


def squared(model: headjax.Model, batch: Any) -> jax.Array:
    """A loss of one's own, by example."""
    return jnp.square(model(batch).logits).mean(axis=(1, 2))


def own(model: headjax.Model, batch: Any) -> Any:
    """The loss that the model brings, as one's own."""
    return model.loss(batch)


def test_a_loss_of_ones_own_is_the_one_that_heads_are_judged_by():
    model, scores = decoder(), headjax.score_heads(decoder(), [BATCH])
    found = headjax.score_heads(model, [BATCH], loss=own)
    assert (found.values, found.loss) == (scores.values, scores.loss)
    other = headjax.score_heads(model, [BATCH], loss=squared)
    assert other.loss == close_to(float(squared(model, BATCH).mean()), sums=tiny.SUMS)
    for head, value in other.score("importance").items():
        up, down = (squared(headjax.gated(model, {head: 1.0 + step}), BATCH) for step in (3e-2, -3e-2))
        assert value == pytest.approx(float(np.abs(up - down).mean() / 6e-2), abs=5e-3, rel=2e-2)
    assert_numbers_close(other.score("entropy"), scores.score("entropy"), sums=tiny.SUMS)
    effects = headjax.ablate(model, [BATCH], loss=squared)
    assert_close(effects.baseline["loss"], squared(model, BATCH), sums=tiny.SUMS)
    for head, row in zip(effects.heads, effects.ablated["loss"], strict=True):
        assert_close(row, squared(headjax.gated(model, {head: 0.0}), BATCH), sums=tiny.SUMS)


@pytest.mark.parametrize("name", ["decoder", "einsum"])
def test_gates_may_be_traced(name):
    """The gradient of one example's loss in the gate of a head is what importance is the absolute value of."""
    model = decoder() if name == "decoder" else Walked(houses.EinsumAttention)
    model.eval()
    head = "decoder/1/2" if name == "decoder" else "layers.1.attn/2"
    one = {key: array[:1] for key, array in (BATCH if name == "decoder" else houses.batches()[0]).items()}

    @jax.jit
    @jax.grad
    def slope(gate: jax.Array) -> jax.Array:
        loss = headjax.gated(model, {head: gate}).loss(one)
        return getattr(loss, "total", loss).sum()

    expected = headjax.score_heads(model, [one]).score("importance")[headjax.HeadId.parse(head)]
    assert abs(float(slope(1.0))) == close_to(expected, sums=2 * tiny.SUMS)


class Walked(houses.Classifier):
    """A user's model that offers the walk, and brings a loss."""

    def embed(self, batch: Any) -> Any:
        return {"x": batch["x"]}

    def blocks(self) -> list[nnx.Module]:
        return [Step(layer) for layer in self.layers]

    def finish(self, state: Any) -> jax.Array:
        return self.head(state["x"].mean(axis=1))

    def __call__(self, batch: Any) -> jax.Array:
        return self.finish({"x": self.hidden(batch["x"])})

    def loss(self, batch: Any) -> jax.Array:
        return cross_entropy(self, batch)


class Step(nnx.Module):
    """A layer as a function from state to state."""

    def __init__(self, layer: nnx.Module) -> None:
        self.layer = layer

    def __call__(self, state: Any) -> Any:
        return {"x": self.layer(state["x"])}


def cross_entropy(model: Any, batch: Any) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(model(batch), batch["y"])


def twice(model: Any, batch: Any) -> jax.Array:
    """A loss that calls the model twice, with other inputs the second time."""
    return cross_entropy(model, batch) + jnp.square(model({"x": 2.0 * batch["x"]})).sum(axis=-1)


def inside(model: Any, batch: Any) -> jax.Array:
    """A loss that does not call the model, but a method of it."""
    return jnp.square(model.hidden(batch["x"])).mean(axis=(1, 2))


class Whole(Walked):
    """The same model without a walk."""

    embed = None


@pytest.mark.parametrize("loss", [None, cross_entropy, twice, inside])
def test_ablation_by_a_users_walk_is_that_by_whole_passes(loss):
    found, expected = (
        headjax.ablate(made(houses.EinsumAttention), houses.batches(), loss=loss, gates={"layers.1.attn/0": 0.5})
        for made in (Walked, Whole)
    )
    assert found.heads == expected.heads
    assert_close(found.ablated["loss"], expected.ablated["loss"], sums=SUMS)
    assert max(abs(effect) for effect in expected.effects().values()) > 1e-3
