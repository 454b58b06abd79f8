"""What tells one study of a model's heads from another."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

if TYPE_CHECKING:
    from headjax.core.fields import Checked
    from headjax.evaluation.task import Task
    from headjax.models.model import Model

FIRST = 256
"""Numbers of every parameter that tell two models apart."""


def fingerprint(model: Model, tasks: Sequence[Task], config: Checked, run: str = "") -> str:
    """Return a hash that is another one if the model, the examples or the settings are."""
    digest = hashlib.sha256(repr((model.config, config, run)).encode())
    for array in jax.tree.leaves(model.params):
        digest.update(np.asarray(array.ravel()[:FIRST]).tobytes())
    for task in tasks:
        digest.update(f"{task.name}/{task.split}/{task.count()}".encode())
        for name, value in sorted(task.data.validation[0].items()):
            digest.update(name.encode() + np.asarray(value).tobytes())
    return digest.hexdigest()
