"""Whether a directory holds what it was written from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headjax.hub.importing import from_huggingface
from headjax.models.base import Model
from headjax.models.encoder_decoder import EncoderDecoderModel
from headjax.models.vision import VisionModel

LENGTH = 16
"""Tokens of the checked sequences, at most."""


def max_difference(model: Model, directory: str | Path) -> float:
    """The largest absolute difference between the outputs of a model and of the directory written from it.

    The directory is read anew. Outputs are the hidden states and, where there are any, logits, on two random examples
    of which one is padded.

    Args:
        model: the model.
        directory: what `to_huggingface` wrote.
    """
    batch = example_batch(model)
    ours, theirs = model(batch), from_huggingface(directory)(batch)
    pairs = [(ours.hidden, theirs.hidden), (ours.logits, theirs.logits)]
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs if a is not None)


def example_batch(model: Model, length: int | None = None) -> dict[str, np.ndarray]:
    """Two random examples of what the model reads, the second padded.

    Args:
        model: the model.
        length: their tokens; None is `LENGTH`, or the model's longest if that is less.
    """
    generator, config = np.random.default_rng(0), model.config
    if isinstance(config, VisionModel):
        size = (2, config.patches.channels, config.patches.image_size, config.patches.image_size)
        return {"pixel_values": generator.standard_normal(size, dtype=np.float32)}
    embeddings = config.embeddings  # type: ignore[attr-defined]
    length = min(LENGTH, longest(model) or LENGTH) if length is None else length
    mask = np.ones((2, length), np.int32)
    mask[1, length // 2 :] = 0
    batch = {"input_ids": _tokens(generator, embeddings.vocab_size, length), "attention_mask": mask}
    if embeddings.segments > 1:
        batch["token_type_ids"] = _tokens(generator, embeddings.segments, length)
    if isinstance(config, EncoderDecoderModel):
        batch["decoder_input_ids"] = _tokens(generator, config.target_embeddings.vocab_size, length)
    return batch


def longest(model: Model) -> int | None:
    """The longest sequence that the model reads, in tokens; None where there is no such limit."""
    embeddings = getattr(model.config, "embeddings", None)
    return None if embeddings is None else getattr(embeddings.positions, "max_length", None)


def _tokens(generator: np.random.Generator, vocab_size: int, length: int) -> np.ndarray:
    return generator.integers(0, vocab_size, (2, length), dtype=np.int32)
