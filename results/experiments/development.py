r"""The development decoder: it needs its heads, its keys turn and are grouped; conversions' defaults are chosen on it.

It starts as the decoder that headjax carries, with rotary positions in place of learned ones and four key and value
heads in place of eight, and is trained until its loss is flat.

    python -m results.experiments.development start runs/start
    headjax train --config configs/small/code.py:start=runs/start,length=128,batch_size=16,steps=3000,peak=2e-3 \
        --workdir runs/development
    python -m results.experiments.development pack runs/development/model
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headjax.conversion import convert
from headjax.core.tensors import flatten
from headjax.hub.importing import demo_model
from headjax.models.model import Model, load
from headjax.nn import RotaryHalves

WEIGHTS = Path(__file__).with_name("development.npz")
"""Trained weights in float16, by path."""

LENGTH = 128
"""Tokens of a block in training."""


def start() -> Model:
    """Return the carried decoder with grouped keys that turn, before its training."""
    grouped = convert(demo_model(), "grouped:kv_heads=4,grouping=consecutive").model
    config: Any = grouped.config
    embeddings = dict(grouped.params["embeddings"])
    attention = tuple(layer.replace(rotary=RotaryHalves()) for layer in config.attention)
    # The mean position adds the same to every logit.
    embeddings["token"] = embeddings["token"] + embeddings.pop("position")[:LENGTH].mean(axis=0, keepdims=True)
    changed = dataclasses.replace(config, attention=attention, positions="none", max_length=None)
    return grouped.replace(config=changed, params=grouped.params | {"embeddings": embeddings})


def decoder() -> Model:
    """Return the trained development decoder, float32."""
    fresh = start()
    with np.load(WEIGHTS) as stored:
        arrays = [jnp.asarray(stored[path], jnp.float32) for path in sorted(flatten(fresh.params))]
    return fresh.replace(params=jax.tree.unflatten(jax.tree.structure(fresh.params), arrays))


def pack(model: Model) -> None:
    """Store the weights of the trained decoder."""
    arrays: dict[str, Any] = {path: np.asarray(array, np.float16) for path, array in flatten(model.params).items()}
    np.savez(WEIGHTS, **arrays)


if __name__ == "__main__":
    action, folder = sys.argv[1:]
    if action == "start":
        start().save(folder)
    else:
        pack(load(folder))
