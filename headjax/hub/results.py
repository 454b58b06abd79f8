"""What an export gives back."""

from __future__ import annotations

from typing import NamedTuple


class Exported(NamedTuple):
    """What was written.

    Attributes:
        family: `model_type` of the config; the kind of model for ONNX.
        layout: the layout taken.
        tensors: number of tensors in the file.
        bytes: size of the weights.
        max_difference: largest difference of outputs, where they were compared.
    """

    family: str
    layout: str
    tensors: int
    bytes: int
    max_difference: float | None = None
