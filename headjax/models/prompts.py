"""Prompts and sources as batches for generation, and generated tokens as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from headjax.core.errors import DataError
from headjax.models.config import Batch, ModelConfig
from headjax.models.encoder_decoder import EncoderDecoderConfig
from headjax.models.model import Model
from headjax.storage.files import check_characters
from headjax.tokenizers.tokenizer import Tokenizer

NEW_TOKENS = 64
"""Default greatest number of tokens of a continuation."""


SPELLED = re.compile(r"<\|[^|<>\s]+\|>")
"""Texts that are special tokens in most vocabularies, and hardly ever anything else."""


def prompt_batch(
    model: Model, texts: Sequence[str], *, max_length: int = 0, special: bool = False
) -> dict[str, np.ndarray]:
    """Return texts as a batch to generate from, padded to the longest.

    Sources are padded on the right, a decoder's prompts on the left, so that continuations begin in the same column.

    Special tokens are those of the tokenizer's template. Without one, the source of an encoder-decoder ends with the
    end-of-text token, as in training on translations. The prompt of a decoder never ends with it, and an empty prompt
    is that token alone, after which a document begins.
    """
    if not texts:
        raise DataError("prompts: expected at least one text")
    for number, text in enumerate(texts):
        check_characters(text, f"prompts[{number}]")
    tokenizer = tokenizer_of(model)
    end = end_of_text(tokenizer)
    reads_source = isinstance(model.config, EncoderDecoderConfig)
    for number, text in enumerate(texts) if special else ():
        unknown = next((token for token in SPELLED.findall(text) if token not in tokenizer.special_tokens), None)
        if unknown is not None:
            names = ", ".join(tokenizer.special_tokens) or "none"
            raise DataError(f"prompts[{number}]: {unknown} is no special token of the model; it has {names}")
    encoded = [_ended(tokenizer.prompt_ids(text, spelled=special), end, reads_source) for text in texts]
    empty = next((number for number, ids in enumerate(encoded) if not ids), None)
    if empty is not None:
        raise DataError(f"prompts[{empty}]: no token, and the tokenizer has no end-of-text token to begin with")
    if max_length and tokenizer.truncation_side == "left":
        encoded = [ids[-max_length:] for ids in encoded]
    elif max_length:
        encoded = [ids if len(ids) <= max_length else [*ids[: max_length - 1], ids[-1]] for ids in encoded]
    shape = (len(encoded), max(map(len, encoded)))
    batch = {"input_ids": np.zeros(shape, np.int32), "attention_mask": np.zeros(shape, np.int32)}
    for row, ids in enumerate(encoded):
        place = slice(0, len(ids)) if reads_source else slice(shape[1] - len(ids), shape[1])
        batch["input_ids"][row, place] = ids
        batch["attention_mask"][row, place] = 1
    return batch


def _ended(ids: list[int], end: int | None, reads_source: bool) -> list[int]:
    """Return a text's tokens with the end-of-text token behind a source, without it behind a prompt."""
    if end is None:
        return ids
    if reads_source:
        return ids if ids and ids[-1] == end else [*ids, end]
    while len(ids) > 1 and ids[-1] == end:
        ids.pop()
    return ids or [end]


def tokenizer_of(model: Model) -> Tokenizer:
    """Return the model's tokenizer."""
    if model.tokenizer is None:
        raise DataError("model: it has no tokenizer, so it cannot read text")
    tokenizer: Tokenizer = model.tokenizer
    return tokenizer


def end_of_text(tokenizer: Tokenizer) -> int | None:
    """Return the id of the token that ends a text; None if the tokenizer has none."""
    return tokenizer.special_id("eos_token") if "eos_token" in dict(tokenizer.special) else None


def new_tokens(config: ModelConfig, batch: Batch) -> int:
    """Return the default greatest number of new tokens: `NEW_TOKENS`, or as many as the model's positions leave."""
    used, reach = prompt_length(config, batch), getattr(config, "max_length", None)
    if reach is None:
        return NEW_TOKENS
    if used >= reach:
        raise DataError(f"prompt: {used} tokens, but the model has {reach} positions; shorten the prompt")
    return min(NEW_TOKENS, reach - used)


def prompt_length(config: ModelConfig, batch: Batch) -> int:
    """Return the number of tokens that the decoder reads before the first new one, padding included."""
    name = "decoder_input_ids" if isinstance(config, EncoderDecoderConfig) else "input_ids"
    return int(np.shape(batch[name])[-1]) if name in batch else 1


def check_positions(config: ModelConfig, batch: Batch, new_tokens: int) -> None:
    """Raise `DataError` where prompts, or the positions that a batch gives them, leave too few for as many tokens."""
    name = "decoder_position_ids" if isinstance(config, EncoderDecoderConfig) else "position_ids"
    reach = config.ranges()[name].high
    used = int(np.max(batch[name])) + 1 if name in batch else prompt_length(config, batch)
    if reach is not None and used + new_tokens > reach:
        raise DataError(f"prompt: {used} tokens and {new_tokens} new ones, but the model has {reach} positions")


def texts_of(
    model: Model, batch: Batch, tokens: np.ndarray, lengths: np.ndarray, end: int | None, count: int = 0
) -> list[str]:
    """Return generated tokens as text: the continuation without its prompt, or the translation."""
    tokenizer = tokenizer_of(model)
    texts = []
    for row in range(count or len(tokens)):
        ids = [int(token) for token in np.asarray(tokens[row])[: int(lengths[row])]]
        ids = ids[:-1] if end is not None and ids and ids[-1] == end else ids
        if isinstance(model.config, EncoderDecoderConfig):
            texts.append(tokenizer.for_targets.decode(np.asarray(ids)).strip())
        else:
            # Some vocabularies drop the space before the first token of a text, so that it is decoded in its place.
            prompt = np.asarray(batch["input_ids"][row])[np.asarray(batch["attention_mask"][row]) == 1]
            text, before = tokenizer.decode([*prompt, *ids]), tokenizer.decode(prompt)
            texts.append(text[len(before) :] if text.startswith(before) else tokenizer.decode(np.asarray(ids)))
    return texts
