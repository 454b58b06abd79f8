"""Data of the report's attention viewer: every head on a few examples, and predictions with heads switched off."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headjax.core.class_names import IGNORED
from headjax.data.source import classes_of
from headjax.heads.agreement import Predictions, agreement_kind, compare, mean_agreement, predict
from headjax.heads.head_id import HeadId, all_heads, position
from headjax.heads.program import gated
from headjax.models.config import Batch, ModelConfig
from headjax.models.inputs import device_batch
from headjax.models.model import Model
from headjax.models.tasks import Regression, SentenceSimilarity, Span
from headjax.nn.state import Compute

MOST_EXAMPLES = 3
"""Number of examples that are shown where their attention is not more than `MOST_BYTES`."""

MOST_TOKENS = 24
"""Number of tokens of an example that are shown, the first ones."""

MOST_BYTES = 1_500_000
"""Number of attention weights of all examples, a byte each."""

UNITS = {
    "kl": "KL divergence from the original model, nats",
    "cosine": "1 - cosine to the original model's embedding",
    "squared_difference": "squared difference from the original model",
}
"""Unit of the change of a prediction, by kind of agreement."""

SPACES = str.maketrans({"Ġ": "␣", "▁": "␣"})
"""Signs of a space in tokens of byte-level BPE and of SentencePiece, and the sign that is shown."""

View = dict[str, Any]
"""An example as JSON data.

`stacks` holds, by head stack, `queries` and `keys` (tokens, or numbers of patches), `heads` (names, layer by layer) and
`weights`, bytes `[heads, queries, keys]` in base 64 where 255 is a weight of 1. `whole` is the prediction with all
heads; `without` has, by the name of a head (`encoder/0/3`) or of a layer (`encoder/0`), the `prediction` without it and
its `change` in `UNITS`.
"""


def views(model: Model, batch: Batch) -> list[View]:
    """Return the first examples of a batch with the attention of all heads, and their predictions without some.

    Padding is left out of the attention, and so are tokens after the first `MOST_TOKENS`; predictions read all tokens.
    """
    heads = all_heads(model.config)
    fitting = MOST_BYTES // max(len(heads) * MOST_TOKENS**2, 1)
    count = max(min(MOST_EXAMPLES, fitting, len(next(iter(batch.values())))), 1)
    examples = {name: np.asarray(array)[:count] for name, array in batch.items()}
    attention = model(examples, attention=True, compute=Compute(attention="einsum")).attention or {}
    shown = [_stacks(model, examples, attention, number) for number in range(count)]
    changes = _predictions(model, examples)
    return [{"stacks": stacks, **changes[number]} for number, stacks in enumerate(shown)]


def _stacks(model: Model, examples: Batch, attention: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the attention of all heads on one example, by head stack."""
    tokens = _tokens(model, {name: array[number] for name, array in examples.items()})
    stacks: dict[str, Any] = {}
    sides = dict.fromkeys(model.config.attentions(), ("input", "input"))  # of queries and keys
    if "cross" in sides:
        sides |= {"decoder": ("target", "target"), "cross": ("target", "input")}
    for stack in sides:
        heads = [head for head in all_heads(model.config) if head.stack == stack]
        if not heads:
            continue
        rows = np.stack([attention[stack][head.layer][number, position(model.config, head)] for head in heads])
        queries, keys = (
            (tokens.get(side) or tuple(map(str, range(size))))[:MOST_TOKENS]
            for side, size in zip(sides[stack], rows.shape[1:], strict=True)
        )
        weights = np.rint(255 * rows[:, : len(queries), : len(keys)]).astype(np.uint8)  # [heads, queries, keys]
        stacks[stack] = {
            "queries": queries,
            "keys": keys,
            "heads": [str(head) for head in heads],
            "weights": base64.b64encode(weights.tobytes()).decode(),
        }
    return stacks


def _tokens(model: Model, example: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return an example's tokens without padding, by side; nothing where it has none."""
    if "input_ids" not in example:
        return {}
    ids = example["input_ids"]
    sides = {"input": ids[example.get("attention_mask", np.ones_like(ids)) > 0]}
    if "cross" in model.config.attentions():
        labels = example["labels"]
        start = getattr(model.config, "start_token", 0)
        sides["target"] = np.concatenate([[start], labels[labels != IGNORED][:-1]])
    return {side: tuple(_written(model, int(token)) for token in tokens) for side, tokens in sides.items()}


def _written(model: Model, token: int) -> str:
    if model.tokenizer is None:
        return str(token)
    text = model.tokenizer.backend.id_to_token(token)
    return str(token) if text is None else str(text).translate(SPACES)


def _predictions(model: Model, examples: Batch) -> list[dict[str, Any]]:
    """Return for each example the prediction with all heads, and those without each head and without each layer."""
    config = model.config
    removals: dict[str, list[HeadId]] = {}
    for head in all_heads(config):
        removals[str(head)] = [head]
        removals.setdefault(f"{head.stack}/{head.layer}", []).append(head)
    arrays = device_batch(config, examples)

    def predicted(heads: Sequence[HeadId]) -> list[Predictions]:
        predictions = predict(gated(model, dict.fromkeys(heads, 0.0)), arrays)
        rows = range(len(predictions.values))
        return [Predictions(predictions.values[row : row + 1], predictions.weight[row : row + 1]) for row in rows]

    whole = predicted(())
    shown: list[dict[str, Any]] = [{"whole": _text(model, prediction), "without": {}} for prediction in whole]
    kind = agreement_kind(config)
    for name, heads in removals.items():
        for example, before, after in zip(shown, whole, predicted(heads), strict=True):
            change = max(mean_agreement(kind, [compare(kind, before, after)]).distance, 0.0)
            example["without"][name] = {"prediction": _text(model, after), "change": change}
    return shown


def _text(model: Model, predictions: Predictions) -> str:
    """Return a prediction in words: a class, a number or a token; nothing of embeddings, spans and tags."""
    values, config = np.asarray(predictions.values[0], np.float64), model.config
    output, names = getattr(config, "task", None), classes_of(model)
    if isinstance(output, Regression):
        return ", ".join(f"{value:.3g}" for value in values.ravel())
    if names and values.ndim == 1:
        return _most_likely(values, names)
    if names or values.ndim == 1 or isinstance(output, Span | SentenceSimilarity):
        return ""
    last = values[np.flatnonzero(np.asarray(predictions.weight[0]))[-1]]  # [vocabulary]
    best = int(last.argmax())
    return f"{_most_likely(last, {best: _written(model, best)})} at the last token"


def _most_likely(logits: np.ndarray, names: Any) -> str:
    best = int(logits.argmax())
    share = 1.0 / np.exp(logits - logits[best]).sum()
    return f"{names[best]} ({share:.1%})"


def unit_of_changes(config: ModelConfig) -> str:
    """Return the unit of the changes of a model's predictions."""
    return UNITS[agreement_kind(config)]
