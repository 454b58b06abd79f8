"""Reading a batch: its tokens, padding and positions, and their embeddings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from headjax.core.errors import DataError
from headjax.core.ranges import check_ranges
from headjax.models.config import Batch, ModelConfig
from headjax.nn.embeddings import Positions
from headjax.nn.feed_forward import fold
from headjax.nn.operands import Mask
from headjax.nn.passes import Pass


def check_batch(config: ModelConfig, batch: Batch) -> Batch:
    """Check on the host that the batch's integers are tokens, classes and positions of the model; return the batch."""
    check_ranges(config.ranges(), batch)
    return batch


def device_batch(config: ModelConfig, batch: Batch) -> dict[str, jax.Array]:
    """Return the batch's arrays as JAX arrays, checked likewise."""
    check_ranges(config.ranges(), batch)
    return {name: jnp.asarray(array) for name, array in batch.items()}


def abstract_integers(shape: tuple[int, ...], *names: str) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shapes and types of integer arrays of these names."""
    return {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name in names}


def batch_tokens(batch: Batch, name: str = "input_ids") -> jax.Array:
    """Return the batch's token ids."""
    tokens = batch_array(batch, name)
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise DataError(f"{name}: expected integers [batch, length], got {tokens.dtype} {list(tokens.shape)}")
    return tokens


def batch_array(batch: Batch, name: str) -> jax.Array:
    """Return an array of the batch."""
    if name not in batch:
        raise DataError(f"{name}: missing from the batch, which has {', '.join(sorted(batch))}")
    return jnp.asarray(batch[name])


def batch_present(batch: Batch, like: jax.Array, name: str = "attention_mask") -> jax.Array | None:
    """`[batch, length]` bool, False at padding; None where the batch has no such mask."""
    if batch.get(name) is None:
        return None
    present = jnp.asarray(batch[name])
    if present.shape != like.shape:
        raise DataError(f"{name}: has shape {list(present.shape)}, the tokens have {list(like.shape)}")
    return present.astype(bool)


def last_tokens(batch: Batch, padding: int | None = None) -> jax.Array:
    """Return the places `[batch]` of the last tokens of examples that are neither masked nor the padding token."""
    tokens = batch_tokens(batch)
    present = batch_present(batch, tokens)
    present = jnp.ones(tokens.shape, bool) if present is None else present
    present = present if padding is None else present & (tokens != padding)
    return jnp.where(present, jnp.arange(tokens.shape[1]), 0).max(axis=1)


def counted_at(mask: jax.Array | None, shape: tuple[int, ...]) -> jax.Array:
    """Return `[batch, length]`, 1.0 where a mask `[batch, length or 1]` is True and 0.0 elsewhere; None is True."""
    return jnp.ones(shape) if mask is None else jnp.broadcast_to(mask, shape).astype(jnp.float32)


def batch_positions(
    batch: Batch, positions: Positions, tokens: jax.Array, present: jax.Array | None, *, causal: bool, side: str = ""
) -> jax.Array:
    """`[batch or 1, length]` positions of the tokens: the batch's own, or counted.

    Decoders count what the mask shows and begin again in every packed example, so that a text has the same positions
    with padding on either side, among others, and in generation. Encoders count as `positions` says.
    """
    own, segments = batch.get(f"{side}position_ids"), batch.get(f"{side}segment_ids")
    if own is not None:
        return jnp.asarray(own)
    if segments is None:
        positions.check_length(tokens.shape[1])
        if not causal or present is None:
            return positions.count(tokens)
    present = jnp.ones(tokens.shape, bool) if present is None else present
    count = jnp.cumsum(present, axis=1)  # padding has the position of the token before it
    if segments is not None:
        segments = jnp.asarray(segments)
        begins = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)))
        count = count - jax.lax.cummax(jnp.where(begins, count - present, 0), axis=1)
    return jnp.maximum(count - 1, 0)


def embedded(
    embeddings: Any, batch: Batch, call: Pass, *, causal: bool = False, segments: jax.Array | None = None
) -> jax.Array:
    """Return the embeddings `[batch, length, width]` of `input_ids [batch, length]`."""
    tokens = batch_tokens(batch)
    present = batch_present(batch, tokens)
    positions = batch_positions(batch, embeddings.positions, tokens, present, causal=causal)
    x: jax.Array = embeddings(tokens, positions=positions, segments=segments, key=fold(call.key, 0))
    return x


def reading(positions: Positions, batch: Batch, call: Pass, *, causal: bool = False) -> Pass:
    """Return the pass of the stack that reads `input_ids [batch, length]`, packed by `segment_ids` or not."""
    tokens = batch_tokens(batch)
    present = batch_present(batch, tokens)
    packed = batch.get("segment_ids")
    counted = batch_positions(batch, positions, tokens, present, causal=causal)
    mask = Mask(causal=causal, keys=present, query_segments=packed, key_segments=packed)
    return call._replace(mask=mask, positions=counted, query_mask=present, key=fold(call.key, 1))
