"""Another task for a trained model."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from headjax.core.errors import ConfigError
from headjax.core.serialize import kind_of, to_data
from headjax.core.tensors import initialize
from headjax.models.decoder import DecoderConfig
from headjax.models.encoder import EncoderConfig
from headjax.models.model import Model
from headjax.models.tasks import TaskOutput


def with_task(model: Model, task: TaskOutput, *, seed: int = 0) -> Model:
    """Return the model with a fresh output for another task; everything before the output stays.

    A pooler is added where the task reads the pooled vector and the model does not pool.

        >>> three = headjax.tasks.Classification(classes=3)
        >>> heads = headjax.Kind(headjax.MultiHeadAttention, num_heads=2, head_dim=8)
        >>> small = headjax.EncoderConfig(attention=heads, hidden=16, width=16, num_layers=1)
        >>> encoder = headjax.Model(small, rngs=nnx.Rngs(0))
        >>> headjax.with_task(encoder, three).config.task.classes
        3
        >>> headjax.with_task(headjax.demo_model(), three).config.output_description()
        ', task classification of 3 classes'

    Args:
        model: a trained encoder, decoder or vision model. A decoder's pooled vector is that of the last token.
        task: the task output.
        seed: of its parameters.

    Raises:
        ConfigError: the model has no exchangeable output, or cannot have this one.
    """
    config: Any = model.config
    if not hasattr(config, "task"):
        raise ConfigError(f"task: the output of a {kind_of(config)} cannot be exchanged")
    changes: dict[str, Any] = {}
    if isinstance(config, DecoderConfig):
        changes = {"tied": True, "output_bias": False, "softcap": None}  # as of no language model
    elif isinstance(config, EncoderConfig) and task.needs_pooler and not config.pools:
        changes = {"pooler": "tanh"}
    new_config = dataclasses.replace(config, task=task, **changes)
    fresh = {name: new_config.tensors()[name] for name in ("output", *({"pooler"} & changes.keys()))}
    params = model.params | initialize(fresh, jax.random.key(seed), config.initializer)
    return model.replace(config=new_config, params=params).with_entry("task", output=to_data(task))
