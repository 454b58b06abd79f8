"""Memory that training and evaluating a model take at the very least, checked before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headjax.core.limits import check_memory
from headjax.core.tensors import count
from headjax.models.config import ModelConfig

STATE = 12
"""Bytes of a parameter in training: itself and both moments of Adam, in float32. Gradients come on top."""

ACTIVATION = 2
"""Bytes of a number of the residual stream, in bfloat16. At least one layer's are there at once."""


def check_state(field: str, model: ModelConfig, there: int | None) -> None:
    """Check that the state of a training run can fit into memory."""
    parameters = count(model.tensors())
    check_memory(field, STATE * parameters, there, f"{parameters:,} parameters in training")


def check_batch(
    field: str, batch_size: int, example: Mapping[str, Any], width: int, there: int | None, parts: int = 1
) -> None:
    """Check that a batch and the residual stream over it can fit into memory."""
    arrays = {name: np.asarray(array) for name, array in example.items()}
    tokens = max((array.size for name, array in arrays.items() if name.endswith("input_ids")), default=0)
    needed = batch_size * sum(array.nbytes for array in arrays.values())
    needed += batch_size // parts * tokens * width * ACTIVATION
    check_memory(field, needed, there, f"{batch_size:,} examples")
