"""Forward speed of models, measured in turns."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp

from headjax.core.timing import Timing, time_in_turns
from headjax.models.config import Batch
from headjax.models.model import Model, forward


def time_forward(models: Mapping[str, Model], batch: Batch, *, repeats: int = 9) -> dict[str, Timing]:
    """Seconds of one forward pass of each model on the same batch, the models taken in turns.

    Args:
        models: the models by name.
        batch: arrays by Hugging Face's names, without what only a loss needs.
        repeats: timed calls of each model.
    """
    arrays = {name: jnp.asarray(array) for name, array in batch.items()}
    calls = {
        name: lambda model=model: forward(model.config, model.params, arrays).logits for name, model in models.items()
    }
    return time_in_turns(calls, repeats=repeats, warmup=2)
