"""Results of exports, and their check: the directory is read again and its outputs are compared."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from headjax.hub.companions import CARRIED
from headjax.hub.families import CODE
from headjax.hub.family import Family
from headjax.hub.importing import from_huggingface
from headjax.hub.maxtext import CHECKPOINT, SIZES
from headjax.hub.safetensors_files import SINGLE
from headjax.models.encoder_decoder import EncoderDecoderConfig
from headjax.models.model import Model
from headjax.models.vision import VisionConfig

ONNX = "onnx/model.onnx"
EXPORTED = frozenset({"config.json", SINGLE, "onnx", CHECKPOINT, SIZES, *CODE, *CARRIED})
"""Names of the files and folders that an export may have."""

LENGTH = 16
"""Largest number of tokens of the sequences on which an export is checked."""


class Exported(NamedTuple):
    """Result of an export.

    Attributes:
        family: `model_type`.
        bytes: of the weights.
        max_difference: of outputs; None unless checked.
        bytes_before: of the weights when they were imported; None for others.
        notes: what changed, such as the family.
    """

    family: str
    layout: str
    tensors: int
    bytes: int
    max_difference: float | None = None
    bytes_before: int | None = None
    notes: tuple[str, ...] = ()


def max_difference(model: Model, directory: str | Path, *, family: Family | None = None) -> float:
    """Return the largest absolute difference between all outputs of a model and of the directory written from it."""
    batch = example_batch(model)
    ours, theirs = model(batch), from_huggingface(directory, family=family)(batch)
    pairs = [(getattr(ours, name), getattr(theirs, name)) for name in ("hidden", "logits", "embeddings")]
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs if a is not None)


def example_batch(model: Model, length: int | None = None) -> dict[str, np.ndarray]:
    """Return a batch of two random examples for the model, the second padded."""
    generator, config = np.random.default_rng(0), model.config
    if isinstance(config, VisionConfig):
        size = (2, config.channels, config.image_size, config.image_size)
        return {"pixel_values": generator.standard_normal(size, dtype=np.float32)}
    tokens: int = config.vocab_size
    length = min(LENGTH, longest(model) or LENGTH) if length is None else length
    sizes = {"input_ids": tokens}
    if getattr(config, "segments", 0) > 1:
        sizes["token_type_ids"] = config.segments
    if isinstance(config, EncoderDecoderConfig):
        sizes["decoder_input_ids"] = config.target_tokens
    mask = np.ones((2, length), np.int32)
    mask[1, length // 2 :] = 0
    drawn = {name: generator.integers(0, size, (2, length), dtype=np.int32) for name, size in sizes.items()}
    return drawn | {"attention_mask": mask}


def longest(model: Model) -> int | None:
    """Return the length in tokens of the longest sequence that the model reads; None where there is no limit."""
    return getattr(model.config, "max_length", None)
