"""What models read off a batch: tokens, which of them are no padding, and their positions."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from headjax.core.errors import DataError
from headjax.models.base import Batch, ModelConfig
from headjax.models.embeddings import Positions
from headjax.models.ranges import check_ranges


def check_batch(config: ModelConfig, batch: Batch) -> Batch:
    """The batch, after a check on the host that its integers are tokens, classes and positions that the model has.

    Every batch passes here on its way to a device. Arrays that are there already are not fetched back.

    Raises:
        DataError: an integer out of range; the message names the array and the place in it.
    """
    check_ranges(config.ranges(), batch)
    return batch


def device_batch(config: ModelConfig, batch: Batch) -> dict[str, jax.Array]:
    """The batch's arrays as JAX arrays, see `check_batch`."""
    return {name: jnp.asarray(array) for name, array in check_batch(config, batch).items()}


def abstract_integers(shape: tuple[int, ...], *names: str) -> dict[str, jax.ShapeDtypeStruct]:
    """Integer arrays of these names, as shapes and types."""
    return {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name in names}


def batch_tokens(batch: Batch, name: str = "input_ids") -> jax.Array:
    """The batch's token ids.

    Raises:
        DataError: there are none, or they are no integers `[batch, length]`.
    """
    tokens = batch_array(batch, name)
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise DataError(f"{name}: expected integers [batch, length], got {tokens.dtype} {list(tokens.shape)}")
    return tokens


def batch_array(batch: Batch, name: str) -> jax.Array:
    """An array of the batch.

    Raises:
        DataError: there is none of this name.
    """
    if name not in batch:
        raise DataError(f"{name}: missing from the batch, which has {', '.join(sorted(batch))}")
    return jnp.asarray(batch[name])


def batch_present(batch: Batch, like: jax.Array, name: str = "attention_mask") -> jax.Array | None:
    """`[batch, length]` bool, False at padding; None where the batch has no such mask.

    Args:
        batch: the batch.
        like: the tokens the mask belongs to.
        name: the mask's name.

    Raises:
        DataError: the mask has another shape than the tokens.
    """
    if batch.get(name) is None:
        return None
    present = jnp.asarray(batch[name])
    if present.shape != like.shape:
        raise DataError(f"{name}: has shape {list(present.shape)}, the tokens have {list(like.shape)}")
    return present.astype(bool)


def batch_positions(
    batch: Batch, positions: Positions, tokens: jax.Array, present: jax.Array | None, name: str = "position_ids"
) -> jax.Array:
    """`[batch or 1, length]` positions of the tokens: the batch's own, or as the model's `Positions` count them.

    Raises:
        DataError: the tokens are more than the positions reach.
    """
    positions.check_length(tokens.shape[1])
    return jnp.asarray(batch[name]) if name in batch else positions.count(tokens.shape[1], present)
