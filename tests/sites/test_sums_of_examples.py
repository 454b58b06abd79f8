"""Losses that are no sums over examples are refused wherever a loss is taken, and what couples them is noticed."""

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
from tests.sites.houses import HEADS, SUMS, loss, mean_loss

BATCH = houses.batches(1, size=6)[0]
MODEL = houses.Classifier(houses.EinsumAttention)


def negatives(model: Any, batch: Any) -> jax.Array:
    vectors = model(batch["x"])
    logits = vectors @ vectors.T
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.arange(len(vectors)))


def balanced(model: Any, batch: Any) -> jax.Array:
    usage = jax.nn.softmax(model(batch["x"])).mean(axis=0)
    return loss(model, batch) + 0.01 * jnp.square(usage).sum()


def normalised(model: Any, batch: Any) -> jax.Array:
    logits = model(batch["x"])
    logits = (logits - logits.mean(axis=0, keepdims=True)) / (logits.std(axis=0, keepdims=True) + 1e-5)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])


def mean(loss: Any) -> Any:
    return lambda model, batch: loss(model, batch).mean()


def weighted(model: Any, batch: Any) -> jax.Array:
    """A mean over targets, of which examples have different numbers."""
    counts = 1.0 + batch["y"]
    return (loss(model, batch) * counts).sum() / counts.sum()


COUPLED = {
    "a balance term": balanced,
    "mean of negatives": mean(negatives),
    "mean of statistics": mean(normalised),
    "mean over targets": weighted,
}


@pytest.mark.parametrize("name", COUPLED)
def test_a_loss_of_a_whole_batch_is_refused(name):
    with pytest.raises(headjax.HeadjaxError, match=r"^loss: .* no sum over examples .*axis of length 1") as caught:
        headjax.score_heads(MODEL, [BATCH], loss=COUPLED[name])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        headjax.ablate,
        headjax.order_heads,
        lambda model, batches, loss: headjax.order_heads(model, batches * 2, "reconstruction", loss=loss),
        lambda model, batches, loss: headjax.reconstruct(
            model, batches, ["layers.0.attn/0", "layers.0.attn/1"], loss=loss
        ),
        lambda model, batches, loss: headjax.learn_gates(
            model, batches, headjax.Subset(count=7), steps=1, learning_rate=0.1, loss=loss
        ),
        lambda model, batches, loss: headjax.report_heads(model, batches, "unwritten.html", loss=loss),
        lambda model, batches, loss: headjax.shrink(model, batches, headjax.Budget(parameters=0.9), loss=loss),
    ],
)
def test_it_is_refused_everywhere(call):
    with pytest.raises(headjax.HeadjaxError, match=r"^loss: .* no sum over examples"):
        call(MODEL, [BATCH], loss=negatives)


def test_a_metric_of_one_number_is_refused_likewise():
    with pytest.raises(headjax.HeadjaxError, match=r"^among others: .* no sum over examples"):
        headjax.ablate(MODEL, [BATCH], loss=loss, metrics={"among others": mean(negatives)})


@pytest.mark.parametrize(
    "house, given",
    [("einsum", loss), ("bf16", mean_loss), ("scanned", lambda model, batch: loss(model, batch).sum())],
)
def test_sums_and_means_of_examples_are_not(house, given):
    headjax.score_heads(houses.HOUSES[house](), houses.batches(1, size=7), loss=given)


def test_noise_by_the_place_in_the_batch_is_not():
    def noisy(model, batch):
        return loss(model, batch | {"x": batch["x"] + jax.random.normal(jax.random.key(0), batch["x"].shape)})

    headjax.score_heads(MODEL, [BATCH], loss=noisy)


def attends(model: Any, batch: Any) -> jax.Array:
    """A loss that reads an array which the examples share."""
    hidden = model.hidden(batch["x"])
    return jnp.einsum("btd,bsd,ts->b", hidden, hidden, batch["mask"]) * batch.get("temperature", 1.0)


def test_an_array_that_examples_share():
    """It is computed right by example, named where examples are taken one by one, noticed where it looks like them."""
    scale, drawn, length = {"temperature": np.float32(0.5)}, np.random.default_rng(0), BATCH["x"].shape[1]
    batch = BATCH | {"mask": drawn.normal(size=(length, length)).astype(np.float32)} | scale

    def held(model, other):
        return attends(model, other | {"mask": batch["mask"]})

    expected = headjax.score_heads(MODEL, [BATCH | scale], loss=held).score("importance")
    found = headjax.score_heads(MODEL, [batch], loss=attends).score("importance")
    assert_close(list(found.values()), list(expected.values()), sums=4 * SUMS)
    with pytest.raises(headjax.HeadjaxError, match=r"^batches: the first axes of mask, x, y are 5, 6, 6; .*\[batch\]"):
        headjax.score_heads(MODEL, [batch], loss=mean(attends))
    alike = batch | {"x": BATCH["x"][:length], "y": BATCH["y"][:length]}
    for given in (attends, mean(attends)):
        with pytest.raises(headjax.HeadjaxError, match="without an axis of examples"):
            headjax.score_heads(MODEL, [alike], loss=given)


def test_losses_of_tokens_are_no_losses_of_examples():
    def by_token(model, batch):
        return jnp.square(model.hidden(batch["x"])).sum(axis=-1).ravel()

    with pytest.raises(headjax.HeadjaxError, match=r"^loss: returned 30 numbers for a batch of 6 examples"):
        headjax.score_heads(MODEL, [BATCH], loss=by_token)


def test_the_way_out_is_right():
    """A batch that is one example: its importance is the slope of the loss of the whole batch."""

    def whole(model, batch):
        return negatives(model, {"x": batch["x"][0]}).mean()

    found = headjax.score_heads(MODEL, [{"x": BATCH["x"][None]}], loss=whole).score("importance")
    model = nnx.clone(MODEL)
    model.eval()
    slope = jax.grad(lambda gates: negatives(headjax.gated(model, {"layers.1.attn": gates}), BATCH).mean())
    expected = jnp.abs(slope(jnp.ones(HEADS)))
    got = [value for head, value in found.items() if head.layer == 1]
    assert_close(got, expected, sums=4 * SUMS)


def test_a_model_brings_a_loss_of_its_own():
    class Own(houses.Classifier):
        def loss(self, batch):
            return negatives(self, batch)

    with pytest.raises(headjax.HeadjaxError, match=r"^loss: .* no sum over examples"):
        headjax.score_heads(Own(houses.EinsumAttention), [BATCH])
