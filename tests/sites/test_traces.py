"""Traces that outlive a call: those of JAX within a model, and what a loss reads by Python when it is called again."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import headjax
from tests.closeness import assert_close
from tests.sites import houses
from tests.sites.houses import SUMS, WIDTH, batches, loss

BATCH = batches(1)[0]


class Rematerialised(houses.Block):
    @nnx.remat
    def __call__(self, x: jax.Array) -> jax.Array:
        return super().__call__(x)


def block(layer: nnx.Module, x: jax.Array) -> jax.Array:
    return layer(x)


jitted = nnx.jit(block)


@jax.jit
def pure(graph: Any, state: Any, x: jax.Array) -> jax.Array:
    return nnx.merge(graph, state)(x)


@functools.partial(jax.checkpoint, static_argnums=0)
def kept(graph: Any, state: Any, x: jax.Array) -> jax.Array:
    return nnx.merge(graph, state)(x)


def branched(layer: nnx.Module, x: jax.Array) -> jax.Array:
    graph, state = nnx.split(layer)
    return jax.lax.cond(jnp.isfinite(x).all(), lambda: pure(graph, state, x), lambda: x)


CALLS: dict[str, tuple[type[houses.Block], Callable[..., jax.Array]]] = {
    "a method under nnx.remat": (Rematerialised, block),
    "nnx.jit": (houses.Block, jitted),
    "nnx.cached_partial": (houses.Block, lambda layer, x: nnx.cached_partial(jitted, layer)(x)),
    "jax.checkpoint": (houses.Block, lambda layer, x: kept(*nnx.split(layer), x)),
    "jax.lax.cond": (houses.Block, branched),
}


class Model(nnx.Module):
    """Blocks that are called in some way, as often as it says."""

    def __init__(self, kind: str = "", times: int = 1) -> None:
        rngs, self.kind, self.times = nnx.Rngs(0), kind, times
        made, _ = CALLS.get(kind, (houses.Block, block))
        attention = functools.partial(houses.flax_attention, dropout_rate=0.0)
        self.layers = nnx.List([made(attention, rngs) for _ in range(2)])
        self.head = nnx.Linear(WIDTH, 3, rngs=rngs)
        self.factor = 1.0

    def __call__(self, x: jax.Array) -> jax.Array:
        _, call = CALLS.get(self.kind, (houses.Block, block))
        for layer in self.layers:
            for _ in range(self.times):
                x = call(layer, x)
        return self.factor * self.head(x.mean(axis=1))


@pytest.fixture(scope="module")
def plain() -> tuple[Any, list[float]]:
    """Scores and effects of the same blocks in a plain call."""
    effects = headjax.ablate(Model(), [BATCH], loss=loss).effects()
    return headjax.score_heads(Model(), [BATCH], loss=loss), list(effects.values())


@pytest.mark.parametrize("kind", CALLS)
def test_a_trace_that_jax_keeps_hides_no_head(kind, plain):
    expected, effects = plain
    for _ in range(2):  # also where the trace is there before the first one
        found = headjax.score_heads(Model(kind), [BATCH], loss=loss)
        for name in ("importance", "importance_token", "fisher"):
            assert_close(list(found.score(name).values()), list(expected.score(name).values()), sums=4 * SUMS)
    ablated = headjax.ablate(Model(kind), [BATCH], loss=loss)
    assert_close(list(ablated.effects().values()), effects, sums=SUMS, scale=1.0)


@pytest.mark.parametrize("kind", ["", "nnx.jit"])
def test_a_layer_that_is_called_twice_is_seen_to_be(kind):
    with pytest.raises(headjax.HeadjaxError, match=r"layers\.0\.attn: is called several times"):
        headjax.reconstruct(Model(kind, times=2), [BATCH], ["layers.0.attn/1"], loss=loss)


@dataclasses.dataclass
class Smoothed:
    """A loss with a number that can change, and without a hash."""

    amount: float = 0.0

    def __call__(self, model: Any, batch: Any) -> jax.Array:
        labels = optax.smooth_labels(jax.nn.one_hot(batch["y"], 3), self.amount)
        return optax.softmax_cross_entropy(model(batch["x"]), labels)


def numbers(model: Model, loss: Any) -> list[float]:
    """What functions of heads say about a loss."""
    ablated = headjax.ablate(model, [BATCH], loss=loss, metrics={"again": loss}, heads=["layers.0.attn/0"])
    return [headjax.score_heads(model, [BATCH], loss=loss).loss, ablated.mean(), ablated.mean("again")]


def test_a_loss_is_as_it_is_when_it_is_called():
    model, held, array = Model(), Smoothed(), np.zeros(1)

    def smoothed_by_array(model: Any, batch: Any) -> jax.Array:
        return Smoothed(array[0])(model, batch)

    kinds = {"callable": held, "array": smoothed_by_array}
    before = {name: numbers(model, kind) for name, kind in kinds.items()}
    held.amount = array[0] = 0.9
    expected = numbers(model, Smoothed(0.9))
    for name, kind in kinds.items():
        assert abs(before[name][0] - expected[0]) > 1e-3, name
        assert_close(numbers(model, kind), expected, sums=SUMS, message=name)


def test_a_model_is_as_it_is_when_it_is_called():
    model = Model()
    headjax.score_heads(model, [BATCH], loss=loss)
    model.factor = 3.0
    evaluated = nnx.clone(model)
    evaluated.eval()
    assert_close(headjax.score_heads(model, [BATCH], loss=loss).loss, loss(evaluated, BATCH).mean(), sums=SUMS)
