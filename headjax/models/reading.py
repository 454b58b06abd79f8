"""Reading a batch's tokens: their embeddings, and the stack over them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from headjax.attention.attend import Call
from headjax.attention.operands import Mask
from headjax.core.tensors import Params
from headjax.models.base import Batch, Options
from headjax.models.dropout import fold
from headjax.models.embeddings import Embeddings
from headjax.models.inputs import batch_positions, batch_present, batch_tokens
from headjax.models.stack import Stack, StackCall


class Reading(NamedTuple):
    """What a stack makes of a batch's tokens.

    Attributes:
        hidden: `[batch, length, width]`, the stack's output.
        present: `[batch, length]` bool, False at padding; None where the batch has no `attention_mask`.
        reports: per layer what the probe made of it.
    """

    hidden: jax.Array
    present: jax.Array | None
    reports: list[dict[str, Any]]


def read(
    name: str,
    stack: Stack,
    embeddings: Embeddings,
    params: Params,
    batch: Batch,
    options: Options,
    *,
    causal: bool = False,
    segments: jax.Array | None = None,
) -> Reading:
    """stack(embeddings(x)) of `input_ids [batch, length]`, examples packed by `segment_ids` kept apart.

    Args:
        name: of the stack, whose parameters and head gates go by it.
        stack: the layers.
        embeddings: turn tokens into vectors; their parameters are `params["embeddings"]`.
        params: the model's parameters, in the type to compute in.
        batch: the tokens, and where it has them `attention_mask`, `position_ids` and `segment_ids`.
        options: of the forward.
        causal: whether a token sees only those before it.
        segments: `[batch, length]` which segment embedding a token gets, or None.
    """
    tokens = batch_tokens(batch)
    present = batch_present(batch, tokens)
    positions = batch_positions(batch, embeddings.positions, tokens, present)
    x = embeddings(params["embeddings"], tokens, positions=positions, segments=segments, key=fold(options.key, 0))
    packed = batch.get("segment_ids")
    mask = Mask(causal=causal, keys=present, query_segments=packed, key_segments=packed)
    call = StackCall(
        attention=Call(mask=mask, gates=options.gates_of(name), positions=positions),
        query_mask=present,
        key=fold(options.key, 1),
        probe=options.probe,
        compute=options.compute,
    )
    hidden, reports = stack(params[name], x, call)
    return Reading(hidden, present, reports)
