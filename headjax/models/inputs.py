"""Reading a batch: its tokens, padding and positions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import DataError, require
from headjax.core.fields import Count, Size
from headjax.models.config import Batch, ModelConfig
from headjax.nn.embeddings import PositionKind, Positions, Range
from headjax.nn.norms import Norm


def check_ranges(ranges: Mapping[str, Range], batch: Mapping[str, Any]) -> None:
    """Check a batch's integers against their ranges; arrays on a device, and real numbers, are left alone.

    On a device, an index out of range would read nonsense.
    """
    for name, (high, what, low, ignored) in ranges.items():
        array = np.asarray(batch[name] if isinstance(batch.get(name), np.ndarray | list | tuple) else ())
        if high is None or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
            continue
        if array.min() >= low and array.max() < high:
            continue
        outside = ((array < low) | (array >= high)) & (array != (low if ignored is None else ignored))
        if outside.any():
            place = [int(axis) for axis in np.argwhere(outside)[0]]
            also = f", or {ignored} for none" if ignored is not None else ""
            has = f"the model has {high} {what} ({low} to {high - 1}{also})"
            raise DataError(f"{name}: {int(array[tuple(place)])} at {place}, but {has}")


def check_batch(config: ModelConfig, batch: Batch) -> Batch:
    """Check on the host that the batch's integers are tokens, classes and positions of the model; return the batch."""
    check_ranges(config.ranges(), batch)
    return batch


def device_batch(config: ModelConfig, batch: Batch) -> dict[str, jax.Array]:
    """Return the batch's arrays as JAX arrays, checked as by `check_batch`."""
    if not isinstance(batch, Mapping):
        raise DataError(f"batches: expected a list of batches, each arrays by name, got {type(batch).__name__}")
    check_ranges(config.ranges(), batch)
    return {name: on_device(array) for name, array in batch.items()}


def on_device(array: Any) -> jax.Array:
    """Return an array as one of JAX's; `jnp.asarray` would compile a program for every shape."""
    return array if isinstance(array, jax.Array) else jax.device_put(np.asarray(array), may_alias=False)


def abstract_integers(shape: tuple[int, ...], *names: str) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shapes and types of integer arrays of these names."""
    return {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name in names}


def batch_array(batch: Batch, name: str, *, tokens: bool = False) -> jax.Array:
    """Return an array of the batch; tokens are integers `[batch, length]`."""
    if name not in batch:
        raise DataError(f"{name}: missing from the batch, which has {', '.join(sorted(batch))}")
    array = on_device(batch[name])
    if tokens and (array.ndim != 2 or not jnp.issubdtype(array.dtype, jnp.integer)):
        raise DataError(f"{name}: expected integers [batch, length], got {array.dtype} {list(array.shape)}")
    return array


def counted_at(mask: jax.Array | None, shape: tuple[int, ...]) -> jax.Array:
    """Return `[batch, length]`, 1.0 where a mask `[batch, length or 1]` is True and 0.0 elsewhere; None is True."""
    return jnp.ones(shape) if mask is None else jnp.broadcast_to(mask, shape).astype(jnp.float32)


class Read(NamedTuple):
    """The tokens of one side of a batch."""

    tokens: jax.Array  # [batch, length]
    present: jax.Array | None  # [batch, length] bool, False at padding; None where the batch has no mask
    positions: jax.Array  # [batch or 1, length], the batch's own, or counted
    segments: jax.Array | None  # [batch, length], numbers of packed examples


def read_tokens(
    batch: Batch, table: Positions, tokens: jax.Array | None = None, *, causal: bool, side: str = ""
) -> Read:
    """Return the tokens of a side of a batch, by default `input_ids`.

    Decoders count what the mask shows and begin again in every packed example, so that a text has the same positions
    with padding on either side, among others, and in generation. Encoders count as the table says.
    """
    tokens = batch_array(batch, "input_ids", tokens=True) if tokens is None else tokens
    segments, present = batch.get(f"{side}segment_ids"), batch.get(f"{side}attention_mask")
    if present is not None:
        present = jnp.asarray(present)
        if present.shape != tokens.shape:
            shapes = f"{list(present.shape)}, the tokens have {list(tokens.shape)}"
            raise DataError(f"{side}attention_mask: has shape {shapes}")
        present = present.astype(bool)
    if batch.get(f"{side}position_ids") is not None:
        return Read(tokens, present, jnp.asarray(batch[f"{side}position_ids"]), segments)
    if segments is None:
        if table.max_length is not None and tokens.shape[1] > table.max_length:
            has = f"has {table.max_length} learned positions" if table.learned else f"supports {table.max_length}"
            raise DataError(f"input_ids: {tokens.shape[1]} tokens, but the model {has}")
        if not causal or present is None:
            return Read(tokens, present, table.count(tokens), segments)
    shown = jnp.ones(tokens.shape, bool) if present is None else present
    count = jnp.cumsum(shown, axis=1)  # padding has the position of the token before it
    if segments is not None:
        count = count - jax.lax.cummax(jnp.where(begins(segments), count - shown, 0), axis=1)
    return Read(tokens, present, jnp.maximum(count - 1, 0), segments)


def begins(segments: jax.typing.ArrayLike) -> jax.Array:
    """Return where a packed example that is not the first begins, of numbers `[batch, length]`."""
    segments = jnp.asarray(segments)
    return jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenConfig(ModelConfig):
    """Base of the families that read `input_ids`, `attention_mask`, `segment_ids` and `position_ids`.

    Attributes:
        vocab_size: number of tokens.
        positions: how positions enter, see `headjax.nn.embeddings.Positions`; rotary ones belong to attention.
        max_length: longest sequence, in tokens; None is any.
        position_offset: added to every learned position (RoBERTa counts from 2).
        embedding_norm: whether the embeddings are normalised, by `norm`, with which post-norm stacks begin well.
    """

    vocab_size: Size
    positions: PositionKind = "learned"
    max_length: Size | None
    position_offset: Count = 0
    embedding_norm: bool = False

    def validate(self) -> None:
        if self.position_table.learned:
            require(self.max_length is not None, "max_length", "missing; learned positions need their number")
        if self.positions == "learned_present":
            unread = "must be at least 1, row offset - 1 is that of padding"
            require(self.position_offset >= 1, "position_offset", unread)

    @functools.cached_property
    def position_table(self) -> Positions:
        return Positions(self.positions, self.max_length, self.position_offset)

    @property
    def embeddings_norm(self) -> Norm | None:
        return self.norm if self.embedding_norm else None
