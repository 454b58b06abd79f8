"""Attention of a few heads on one example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headjax.heads.head_id import HeadId, position
from headjax.models.compute import Compute
from headjax.models.config import Batch
from headjax.models.model import Model
from headjax.models.outputs import IGNORED

MOST_TOKENS = 24


class Pattern(NamedTuple):
    """Attention of some heads of one head stack on one example.

    Attributes:
        heads: the heads.
        probabilities: `[heads, query, key]`.
        queries, keys: the tokens, or numbers of patches.
    """

    heads: tuple[HeadId, ...]
    probabilities: np.ndarray
    queries: tuple[str, ...]
    keys: tuple[str, ...]


def patterns(model: Model, batch: Batch, heads: Sequence[HeadId], count: int) -> dict[str, Pattern]:
    """Return, by head stack, the attention of the first `count` of its heads on the batch's first example.

    Padding is left out, and so are tokens after the first `MOST_TOKENS`.

    Args:
        model: the model.
        batch: some examples.
        heads: heads in the order of preference.
        count: how many of each head stack.
    """
    example = {name: np.asarray(array)[:1] for name, array in batch.items()}
    found = model(example, attention=True, compute=Compute(attention="einsum")).attention or {}
    chosen: dict[str, list[HeadId]] = {}
    for head in heads:
        chosen.setdefault(head.stack, [])
        if len(chosen[head.stack]) < count:
            chosen[head.stack].append(head)
    tokens = _tokens(model, example)
    drawn = {}
    for stack, some in chosen.items():
        rows = np.stack([found[stack][head.layer][0, position(model.config, head)] for head in some])
        queries, keys = (
            tokens.get(side) or tuple(map(str, range(size)))
            for side, size in zip(_sides(stack, model), rows.shape[1:], strict=True)
        )
        queries, keys = queries[:MOST_TOKENS], keys[:MOST_TOKENS]
        drawn[stack] = Pattern(tuple(some), rows[:, : len(queries), : len(keys)], queries, keys)
    return drawn


def _sides(stack: str, model: Model) -> tuple[str, str]:
    """Return the sides whose tokens are a head stack's queries and keys."""
    if "cross" not in model.config.attentions():
        return "input", "input"
    return {"encoder": ("input", "input"), "decoder": ("target", "target"), "cross": ("target", "input")}[stack]


def _tokens(model: Model, example: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The example's tokens without padding, by side; nothing where it has none."""
    if "input_ids" not in example:
        return {}
    ids = example["input_ids"][0]
    present = example.get("attention_mask", np.ones_like(example["input_ids"]))[0] > 0
    sides = {"input": ids[present]}
    if "cross" in model.config.attentions():
        labels = example["labels"][0]
        start = getattr(model.config, "start_token", 0)
        sides["target"] = np.concatenate([[start], labels[labels != IGNORED][:-1]])
    return {side: tuple(_written(model, int(token)) for token in found) for side, found in sides.items()}


def _written(model: Model, token: int) -> str:
    if model.tokenizer is None:
        return str(token)
    text = model.tokenizer.backend.id_to_token(token)
    return str(token) if text is None else str(text)
