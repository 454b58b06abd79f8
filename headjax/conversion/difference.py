"""How far two models' outputs are apart."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp

from headjax.core.errors import DataError
from headjax.models.base import Batch, Model
from headjax.models.encoder_decoder import EncoderDecoderModel
from headjax.models.outputs import IGNORED


def output_difference(before: Model, after: Model, batches: Iterable[Batch]) -> float:
    """||y - y'|| / ||y|| of the last hidden states y and y', `[batch, length, width]`, over all tokens of the batches.

    Raises:
        DataError: no batches.
    """
    distances, sizes = [], []
    for batch in batches:
        old, new = (model(batch).hidden.astype(jnp.float32) for model in (before, after))
        present = _present(before, batch, old)
        distances.append(float((present * jnp.square(old - new)).sum()))
        sizes.append(float((present * jnp.square(old)).sum()))
    if not sizes:
        raise DataError("batches: there are none to compare the models on")
    return float((sum(distances) / max(sum(sizes), 1e-30)) ** 0.5)


def _present(model: Model, batch: Batch, hidden: jax.Array) -> jax.Array:
    """`[batch, length, 1]` 1 at tokens, 0 at padding."""
    mask = batch.get("attention_mask")
    if isinstance(model.config, EncoderDecoderModel):
        labels = batch.get("labels")
        mask = batch.get("decoder_attention_mask", None if labels is None else labels != IGNORED)
    if mask is None:
        return jnp.ones((*hidden.shape[:2], 1))
    return jnp.asarray(mask, jnp.float32)[:, :, None]
