"""The decoder language model: what may depend on what, and that how it is computed changes nothing."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from tests import tiny
from tests.closeness import assert_close, assert_trees_close
from tests.selected import first
from tests.tiny import flatten

BATCH, LENGTH = 2, 10
UNPLACED = {"positions": "none", "max_length": None}

MIXED = tiny.decoder_config(
    *(
        tiny.layer(),
        tiny.layer(),
        tiny.layer(tiny.collaborative(2)),
        tiny.layer(headjax.Kind(headjax.nn.NoHeadsAttention)),
    ),
    **dict.fromkeys(("dropout", "attention_dropout", "feed_forward_dropout"), 0.1),
    tied=False,
    output_bias=True,
)
"""Two runs of one layer, one of two; every dropout; a layer without heads."""


@pytest.fixture(scope="module")
def mixed():
    return tiny.model(MIXED)


def padded_batch() -> dict[str, np.ndarray]:
    """A batch whose second example has padding in its middle and at its end."""
    batch = tiny.tokens(BATCH, LENGTH)
    present = np.ones((BATCH, LENGTH), np.int32)
    present[1, [2, 8, 9]] = 0
    return batch | {"attention_mask": present}


@functools.partial(jax.jit, static_argnums=(0, 3))
def loss_and_gradient(
    config: headjax.DecoderConfig, params: Any, batch: Any, compute: headjax.Compute, key: Any = None
) -> Any:
    """Mean loss and its gradient with respect to the parameters."""

    def loss(params: Any) -> Any:
        model = headjax.Model(config, params)
        return model.losses(model.forward(batch, headjax.models.ForwardOptions(key=key, compute=compute)), batch).mean()

    return jax.value_and_grad(loss)(params)


@pytest.fixture(scope="module")
def reference_step(mixed):
    return loss_and_gradient(MIXED, mixed.params, padded_batch(), headjax.Compute(), jax.random.key(7))


def assert_same(first: Any, second: Any) -> None:
    """Equal gradients up to rounding; those of keys' biases are zero but for what is left of others that cancel."""
    assert_trees_close(flatten(second), flatten(first), sums=2 * tiny.SUMS, floor=0.1)


@functools.partial(jax.jit, static_argnums=0)
def position_gradients(config: headjax.DecoderConfig, params: Any, batch: Any) -> Any:
    """`[batch, length, length]`: how strongly the output at (b, t) depends on the input at position s."""

    def entry(table: Any, b: Any, t: Any) -> Any:
        embeddings = params["embeddings"] | {"position": table}
        logits = headjax.Model(config, params | {"embeddings": embeddings}).forward(batch).logits
        return jnp.sum(jnp.sin(jnp.arange(logits.shape[-1])) * logits[b, t])

    def row(b: Any) -> Any:
        gradients = jax.vmap(lambda t: jax.grad(entry)(params["embeddings"]["position"], b, t))(jnp.arange(LENGTH))
        return jnp.abs(gradients).max(axis=-1)[:, :LENGTH]

    return jax.vmap(row)(jnp.arange(BATCH))


def test_causality_and_padding_by_gradient(mixed):
    batch = padded_batch() | {"position_ids": np.arange(LENGTH)[None]}  # the table's row tells the place
    depends = np.asarray(position_gradients(MIXED, mixed.params, batch)) > 1e-6
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))
    present = batch["attention_mask"].astype(bool)
    np.testing.assert_array_equal(depends[0], causal)
    # What is at a padding position reaches no other, and itself only through its residual connection.
    np.testing.assert_array_equal(depends[1], causal & (present[1][None] | np.eye(LENGTH, dtype=bool)))


def test_a_token_outside_the_window_has_no_gradient():
    """Each layer reaches window - 1 tokens further back; layers of other windows are not scanned together."""
    for windows, reach in (((3,), 2), ((3, 3), 4), ((3, 3, 2), 5)):
        config = tiny.decoder_config(*(tiny.layer(window=window) for window in windows))
        depends = np.asarray(position_gradients(config, tiny.model(config).params, tiny.tokens(BATCH, LENGTH)))
        distance = np.arange(LENGTH)[:, None] - np.arange(LENGTH)[None, :]
        seen = (distance >= 0) & (distance <= reach)
        assert (depends[:, ~seen] == 0.0).all()
        assert (depends[:, seen] > 1e-6).all()


@pytest.mark.parametrize(
    "compute",
    first(1, [headjax.Compute(scan=False), headjax.Compute(remat="dots"), headjax.Compute(remat="full")]),
    ids=str,
)
def test_scan_unrolling_and_rematerialisation_compute_the_same(mixed, reference_step, compute):
    """In training: dropout falls on the same entries however the layers are computed."""
    loss, gradients = loss_and_gradient(MIXED, mixed.params, padded_batch(), compute, jax.random.key(7))
    assert_close(loss, reference_step[0], sums=tiny.SUMS)
    assert_same(reference_step[1], gradients)


def test_loss_is_the_cross_entropy_of_the_next_token(mixed):
    batch = padded_batch()
    labels = batch["input_ids"].copy()
    labels[0, 4:7] = -100
    batch["labels"] = labels
    output = mixed(batch)
    loss = mixed.losses(output, {name: jnp.asarray(array) for name, array in batch.items()})
    logits = np.asarray(output.logits, np.float64)
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    total, weight = np.zeros(BATCH), np.zeros(BATCH)
    for b in range(BATCH):
        for t in range(1, LENGTH):
            if labels[b, t] != -100 and batch["attention_mask"][b, t - 1 : t + 1].all():
                total[b] -= log_probabilities[b, t - 1, labels[b, t]]
                weight[b] += 1
    assert_close(loss.total, total, sums=tiny.SUMS)
    np.testing.assert_array_equal(loss.weight, weight)
    assert_close(loss.mean(), total.sum() / weight.sum(), sums=tiny.SUMS)
    assert_close(loss.total / loss.weight, total / weight, sums=tiny.SUMS)
    nothing = mixed.losses(output, batch | {"labels": np.full_like(labels, -100)})
    assert float(nothing.mean()) == 0.0


ROTARY = tiny.multi_head(rotary=headjax.nn.RotaryHalves())
PLACED = {
    "learned": tiny.decoder_config(),
    "sinusoidal": tiny.decoder_config(positions="sinusoidal"),
    "rotary": tiny.decoder_config(tiny.layer(ROTARY), **UNPLACED),
    "window": tiny.decoder_config(tiny.layer(ROTARY, window=3), **UNPLACED),
}
"""Decoders by how their tokens have places."""


@pytest.mark.parametrize("kind", PLACED)
def test_positions_do_not_count_padding(kind):
    """On either side or between tokens; the first token behind padding is not predicted from it."""
    config, rows = PLACED[kind], tiny.tokens(2, 6)["input_ids"]
    model = tiny.model(config)
    alone = model({"input_ids": rows})
    for places in ([0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 6, 7]):
        if kind == "window" and places[-1] - places[0] > 5:
            continue  # windows count padding between tokens
        batch = {"input_ids": np.full((2, 9), 7), "attention_mask": np.zeros((2, 9), np.int32)}
        batch["input_ids"][:, places], batch["attention_mask"][:, places] = rows, 1
        padded = model(batch)
        assert_close(padded.logits[:, np.asarray(places)], alone.logits, sums=tiny.SUMS)
        if places[-1] - places[0] == 5:
            losses = model.losses(padded, batch), model.losses(alone, {"input_ids": rows})
            assert_close(losses[0].total, losses[1].total, sums=tiny.SUMS)
            np.testing.assert_array_equal(losses[0].weight, losses[1].weight)


@pytest.mark.parametrize("given", [True, False])
def test_packed_examples_do_not_see_each_other(mixed, given):
    """Two examples in one row, told apart by segments, compute as two rows; each has positions from 0."""
    rows = tiny.tokens(2, 5)["input_ids"]
    packed = {"input_ids": rows.reshape(1, 10), "segment_ids": np.repeat([[1, 2]], 5, axis=1)}
    packed |= {"position_ids": np.tile(np.arange(5), 2)[None]} if given else {}
    apart = mixed({"input_ids": rows}).logits
    assert_close(mixed(packed).logits.reshape(apart.shape), apart, sums=tiny.SUMS)
    together, each = (mixed.losses(mixed(batch), batch) for batch in (packed, {"input_ids": rows}))
    assert_close(together.total.sum(), each.total.sum(), sums=tiny.SUMS)
    assert together.weight.sum() == each.weight.sum() == 8
