"""`attend` and `Mask.array` against plain NumPy."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from tests.closeness import assert_close

BATCH, QUERIES, KEYS, HEADS, DIM, VALUES = 2, 5, 7, 4, 6, 3
SCALE = 0.37
SUMS = DIM + 2 * KEYS
"""Terms on the way to a context: logits, softmax and context over the keys."""


@functools.partial(jax.jit, static_argnames="implementation")
def attended_by(query, key, value, mask=None, bias=None, implementation="auto"):
    """One program of each structure, which its tests share."""
    return headjax.nn.attend(query, key, value, scale=SCALE, mask=mask, bias=bias, implementation=implementation)


def draw(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def inputs(key_heads: int = HEADS, value_heads: int = HEADS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Query, key and value."""
    return (
        draw((BATCH, QUERIES, HEADS, DIM), 0),
        draw((BATCH, KEYS, key_heads, DIM), 1),
        draw((BATCH, KEYS, value_heads, VALUES), 2),
    )


def reference(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, scale: float, allowed: Any = None, bias: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Context and probabilities, head by head and query by query, in float64."""
    batch, queries, heads, _ = query.shape
    context = np.zeros((batch, queries, heads, value.shape[-1]))
    probabilities = np.zeros((batch, heads, queries, key.shape[1]))
    bias = None if bias is None else np.broadcast_to(bias, probabilities.shape)
    for b in range(batch):
        for h in range(heads):
            keys = key[b, :, h * key.shape[2] // heads].astype(np.float64)
            values = value[b, :, h * value.shape[2] // heads].astype(np.float64)
            for q in range(queries):
                logits = scale * keys @ query[b, q, h].astype(np.float64)
                if bias is not None:
                    logits = logits + bias[b, h, q]
                if allowed is not None:
                    logits = np.where(np.broadcast_to(allowed, probabilities.shape)[b, h, q], logits, -np.inf)
                weights = np.exp(logits - logits.max())
                probabilities[b, h, q] = weights / weights.sum()
                context[b, q, h] = probabilities[b, h, q] @ values
    return context, probabilities


@pytest.mark.parametrize("key_heads, value_heads", [(4, 4), (1, 4), (2, 1), (4, 2)])
def test_agrees_with_numpy_for_shared_and_own_keys_and_values(key_heads, value_heads):
    query, key, value = inputs(key_heads, value_heads)
    present = np.arange(KEYS)[None] < np.array([[KEYS], [4]])
    bias = draw((1, HEADS, QUERIES, KEYS), 3)
    attended = attended_by(query, key, value, headjax.nn.Mask(keys=present), bias)
    context, probabilities = reference(query, key, value, SCALE, present[:, None, None], bias)
    assert_close(attended.context, context, sums=SUMS)
    assert_close(attended.probabilities, probabilities, sums=SUMS)


def test_large_logits_neither_overflow_nor_lose_the_winner():
    query, key, value = inputs()
    attended = attended_by(1e4 * query, 1e4 * key, value)
    winner = np.einsum("bqhd,bkhd->bhqk", query.astype(np.float64), key).argmax(axis=-1)
    assert np.isfinite(attended.context).all()
    np.testing.assert_array_equal(np.argmax(attended.probabilities, axis=-1), winner)


def test_dropout_zeroes_at_its_rate_and_keeps_the_mean():
    """Identity values show the dropped probabilities themselves."""
    rate, draws = 0.25, 400
    query, key, _ = inputs()
    value = np.broadcast_to(np.eye(KEYS, dtype=np.float32)[None, :, None], (BATCH, KEYS, HEADS, KEYS))
    probabilities = np.asarray(attended_by(query, key, value).context)

    def dropped(key_: Any) -> Any:
        return headjax.nn.attend(query, key, value, scale=SCALE, dropout=headjax.nn.Dropout(rate, key_))

    attended = jax.jit(jax.vmap(dropped))(jax.random.split(jax.random.key(0), draws))
    contexts, zero = np.asarray(attended.context), np.asarray(attended.context) == 0
    assert_close(np.where(zero, 0, contexts), np.where(zero, 0, probabilities[None] / (1 - rate)), sums=SUMS)
    deviation = np.sqrt(rate * (1 - rate) / zero.size)
    assert abs(zero.mean() - rate) < 4 * deviation
    relative = (contexts / probabilities[None]).mean(axis=0) - 1
    assert np.abs(relative).max() < 5 * np.sqrt(rate / (1 - rate) / draws)
    # What is reported is what the softmax gave.
    assert_close(np.asarray(attended.probabilities)[0], np.swapaxes(probabilities, 1, 2), sums=SUMS)


def test_softmax_stays_in_float32_for_bfloat16_inputs():
    attended = attended_by(*(array.astype(jnp.bfloat16) for array in inputs()))
    assert attended.context.dtype == jnp.bfloat16
    assert attended.probabilities.dtype == jnp.float32
    assert_close(np.sum(attended.probabilities, axis=-1), np.ones((BATCH, HEADS, QUERIES)), sums=2 * KEYS)


def test_requests_that_cannot_be_met_say_why():
    query, key, value = inputs()
    with pytest.raises(headjax.KernelError, match=r"^key heads: 3 does not divide the 4 query heads$"):
        headjax.nn.attend(query, key[:, :, :3], value, scale=SCALE)


SEGMENTS = {"query_segments": np.array([[1, 1, 2], [1, 1, 1]]), "key_segments": np.array([[1, 2, 2, 2], [1, 1, 2, 1]])}
PRESENT = np.array([[1, 1, 1, 1], [1, 0, 1, 0]])
MASKS = {
    "causal": headjax.nn.Mask(causal=True),
    "causal, all examples at one offset": headjax.nn.Mask(causal=True, query_offset=2),
    "causal, each example at its own": headjax.nn.Mask(causal=True, query_offset=np.array([0, 3])),
    "segments": headjax.nn.Mask(**SEGMENTS),
    "causal, keys and segments": headjax.nn.Mask(causal=True, keys=PRESENT, **SEGMENTS),
    "window": headjax.nn.Mask(window=2, query_offset=np.array([0, 3])),
    "causal window": headjax.nn.Mask(causal=True, window=2, query_offset=np.array([0, 3])),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_their_definitions_entry_by_entry(name):
    """Query i stands at position i + offset among the keys; all conditions hold together."""
    mask = MASKS[name]
    allowed = np.asarray(jax.jit(lambda mask: mask.array(3, 4))(mask))
    offsets = np.broadcast_to(0 if mask.query_offset is None else mask.query_offset, 2)
    expected = np.ones((2, 1, 3, 4), bool)
    for b, _, i, j in np.ndindex(expected.shape):
        place = i + offsets[b]
        expected[b, 0, i, j] = (
            (not mask.causal or j <= place)
            and (mask.window is None or abs(place - j) < mask.window)
            and (mask.keys is None or PRESENT[b, j] == 1)
            and (mask.query_segments is None or mask.query_segments[b, i] == mask.key_segments[b, j])
        )
    assert allowed.dtype == bool
    np.testing.assert_array_equal(np.broadcast_to(allowed, expected.shape), expected)


def test_a_window_measures_distances_between_positions_where_they_are_given():
    """Padding between two tokens takes an index and no position."""
    positions = np.array([[0, 0, 1, 2]])
    mask = headjax.nn.Mask(causal=True, window=2, query_positions=positions, key_positions=positions)
    rows = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1]]
    assert np.asarray(jax.jit(lambda mask: mask.array(4, 4))(mask))[0, 0].astype(int).tolist() == rows
