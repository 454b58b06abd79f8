"""Another task for a trained model."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from headjax.core import history
from headjax.core import tensors as declared
from headjax.core.errors import ConfigError
from headjax.core.serialize import kind_of, to_data
from headjax.models.base import Model
from headjax.models.pooler import Pooler
from headjax.models.tasks.base import TaskOutput


def with_task(model: Model, output: TaskOutput, *, seed: int = 0) -> Model:
    """The model with a fresh output for another task; everything before the output stays.

    A pooler is added where the output reads the pooled vector and the model does not pool.

    Args:
        model: a trained encoder or vision model.
        output: the task output.
        seed: of its parameters.

    Raises:
        ConfigError: the model has no exchangeable output, or cannot have this one.
    """
    config: Any = model.config
    if not isinstance(getattr(config, "output", None), TaskOutput):
        raise ConfigError(f"task: the output of a {kind_of(config)} cannot be exchanged")
    changes: dict[str, Any] = {"output": output}
    if output.needs_pooler and config.pooler is None:
        changes["pooler"] = Pooler()
    changed = dataclasses.replace(config, **changes)
    tensors = changed.tensors()
    fresh = declared.initialize({name: tensors[name] for name in changes}, jax.random.key(seed), config.initializer)
    entry = history.entry("task", output=to_data(output))
    return Model(changed, {**model.params, **fresh}, (*model.history, entry), model.tokenizer)
