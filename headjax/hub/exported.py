"""Result of an export, the files that it may have, and the tokenizer among them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from headjax.hub.checking import longest
from headjax.hub.safetensors_files import SINGLE
from headjax.models.model import Model
from headjax.tokenizers.files import CONFIG_FILE, write_tokenizer
from headjax.tokenizers.tokenizer import SPECIAL_FILE, TARGET_FILE, VOCABULARY_FILE

ONNX = "model.onnx"
EXPORTED = frozenset(
    {"config.json", SINGLE, ONNX, f"{ONNX}.data", "inputs.json"}
    | {VOCABULARY_FILE, TARGET_FILE, SPECIAL_FILE, CONFIG_FILE}
)
"""Names of the files that an export may have."""


class Padding(NamedTuple):
    """Difference between the shapes that the layout `padded` writes and those of the model.

    Attributes:
        bytes: bytes of weights.
        flops: floating-point operations of one forward of one example, as a share of the model's own.
        cache_bytes_per_token: bytes that a float32 decoding cache holds for each token.
        length: tokens of the example.
    """

    bytes: int
    flops: float
    cache_bytes_per_token: int
    length: int


class Exported(NamedTuple):
    """Result of an export.

    Attributes:
        family: `model_type` of the config; the kind of model for ONNX.
        layout: the layout taken.
        tensors: number of tensors in the file.
        bytes: size of the weights in bytes.
        max_difference: largest difference of outputs, where they were compared.
        padding: cost of the family's larger shapes, where the layout is `padded`.
        notes: sentences about what a reader of the directory may not expect, such as another family than before.
    """

    family: str
    layout: str
    tensors: int
    bytes: int
    max_difference: float | None = None
    padding: Padding | None = None
    notes: tuple[str, ...] = ()


def write_own_tokenizer(model: Model, folder: Path) -> None:
    """Write the model's tokenizer, if it has one, for `transformers`."""
    if model.tokenizer is not None:
        embeddings = getattr(model.config, "embeddings", None)
        write_tokenizer(model.tokenizer, folder, longest(model), segments=getattr(embeddings, "segments", 0) > 1)
