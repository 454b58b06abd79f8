"""Attention of heads to marked keys: earlier copies of the next token, matching brackets, or marks of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from headjax.core.errors import DataError
from headjax.heads.head_id import HeadId, all_heads, position
from headjax.models.compute import Compute
from headjax.models.config import Batch
from headjax.models.model import Model

Marker = Callable[[Sequence[int]], np.ndarray]
"""From an example's token ids to `[query, key]` marks, truth values: the keys that a query is asked about."""

UNIFORM = "uniform"

CLOSING = {")": "(", "]": "[", "}": "{"}


def attention_on_marks(
    model: Model,
    batches: Iterable[Batch],
    markers: Mapping[str, Marker],
    *,
    stack: str = "decoder",
    compute: Compute = Compute(attention="einsum"),
) -> dict[str, dict[HeadId | str, float]]:
    """Return each head's attention weight on marked keys, the mean over the queries that have a mark.

    With marks m[q, k] and a head's probabilities p[q, k] this is the mean of sum_k m[q, k] p[q, k] over those queries.
    Beside the heads, the entry `UNIFORM` holds the weight under equal attention to all keys up to the query.

    Args:
        model: a model with self-attention in `stack`.
        batches: examples with `input_ids`; padding is not expected.
        markers: the marks, by name.
        stack: whose heads.
        compute: how to compute, with an implementation that holds probabilities.

    Raises:
        DataError: the model has no such head stack, or no query of the examples has a mark.
    """
    if stack not in model.config.attentions():
        raise DataError(f"stack: the model has no {stack}, it has {', '.join(model.config.attentions())}")
    heads = [head for head in all_heads(model.config) if head.stack == stack]
    sums = {name: np.zeros(len(heads) + 1) for name in markers}
    queries = dict.fromkeys(markers, 0)
    for batch in batches:
        found = model({"input_ids": batch["input_ids"]}, attention=True, compute=compute).attention
        # A layer that has lost all its heads has no probabilities.
        layers = {number: np.asarray(layer) for number, layer in enumerate((found or {})[stack]) if layer is not None}
        for name, marker in markers.items():
            marks = np.stack([marker(tokens) for tokens in np.asarray(batch["input_ids"]).tolist()]).astype(np.float32)
            marked = marks.any(axis=-1)
            queries[name] += int(marked.sum())
            weights = {number: np.einsum("bhqk,bqk->h", layer, marks) for number, layer in layers.items()}
            sums[name][:-1] += [weights[head.layer][position(model.config, head)] for head in heads]
            sums[name][-1] += float((marks.mean(axis=0) / np.arange(1, marks.shape[1] + 1)[:, None]).sum()) * len(marks)
    for name, count in queries.items():
        if not count:
            raise DataError(f"batches: no query has a mark of {name!r}")
    names: list[HeadId | str] = [*heads, UNIFORM]
    return {name: dict(zip(names, (sums[name] / queries[name]).tolist(), strict=True)) for name in markers}


def previous_token(tokens: Sequence[int]) -> np.ndarray:
    """Mark the key before each query."""
    return np.eye(len(tokens), k=-1, dtype=bool)


def same_context(tokens: Sequence[int]) -> np.ndarray:
    """Mark the keys that followed earlier occurrences of the query's token, which a head copies from.

    Heads that attend there are induction heads (Olsson et al. 2022, the prefix matching score).
    """
    array = np.asarray(tokens)
    marks = np.zeros((len(array), len(array)), bool)
    marks[:, 1:] = np.tril(array[:, None] == array[None, :], k=-1)[:, :-1]
    np.fill_diagonal(marks, False)  # the token that follows must lie before the query
    return marks


def matching_bracket(texts: Callable[[int], str]) -> Marker:
    """Return a marker of the token that opened the bracket which the query's token closes.

    Args:
        texts: from a token's id to its text.
    """

    def mark(tokens: Sequence[int]) -> np.ndarray:
        marks = np.zeros((len(tokens), len(tokens)), bool)
        opened: list[tuple[str, int]] = []
        for place, token in enumerate(tokens):
            for character in texts(token):
                if character in CLOSING.values():
                    opened.append((character, place))
                elif opened and opened[-1][0] == CLOSING.get(character):
                    start = opened.pop()[1]
                    marks[place, start] = start < place
        return marks

    return mark
