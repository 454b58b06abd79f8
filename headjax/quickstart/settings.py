"""The quickstart's models and training, as the data of a config file."""

from __future__ import annotations

from typing import Any

from headjax.core.errors import ConfigError
from headjax.core.serialize import unknown_name

VOCABULARY = 2048
LENGTH = 256
LAYERS = 4
BATCH_SIZE = 4
STEPS = 400
"""Steps of a model trained on the user's own text, whose heads are then taken apart."""

SHORT = 32
"""Steps of each model where the decoder that headjax carries is taken apart: enough to compare, not to learn much."""

SEEDS = (0, 1)
HEADS = 8

# All three have 1.07 million parameters within 1 %: what a formulation saves in attention goes into its feed-forward.
FORMULATIONS: dict[str, dict[str, Any]] = {
    "standard": {
        "width": 128,
        "attention": {"kind": "multi_head", "num_heads": HEADS, "head_dim": 16},
        "feed_forward": {"kind": "dense", "hidden": 512},
    },
    "fixed": {
        "width": 96,
        "attention": {"kind": "multi_head", "num_heads": HEADS, "head_dim": 32},
        "feed_forward": {"kind": "dense", "hidden": 600},
    },
    "collaborative": {
        "width": 128,
        "attention": {"kind": "collaborative", "num_heads": HEADS, "shared_dim": 64, "value_dim": 16, "head_dim": 16},
        "feed_forward": {"kind": "dense", "hidden": 576},
    },
}
"""The formulations, all with as many heads: `standard` divides the width among them, `fixed` gives each twice the size
in a narrower model, `collaborative` lets them share half-size keys and queries."""


def training(
    formulation: str, *, steps: int, path: str = "", batch_size: int = BATCH_SIZE, seed: int = 0
) -> dict[str, Any]:
    """Return the training run of one formulation.

    Args:
        formulation: a name in `FORMULATIONS`.
        steps: optimizer steps.
        path: the user's text; empty for the source code of Python's standard library.
        batch_size: blocks of `LENGTH` tokens per step.
        seed: of the initialisation and of the order of the blocks, which is the same for all formulations.

    Raises:
        ConfigError: an unknown formulation.
    """
    if formulation not in FORMULATIONS:
        raise ConfigError(f"formulation: {unknown_name('formulation', formulation, FORMULATIONS)}")
    return {
        "model": {
            "kind": "language_model",
            "vocab_size": VOCABULARY,
            "max_length": LENGTH,
            "num_layers": LAYERS,
            **FORMULATIONS[formulation],
        },
        "data": {
            "kind": "language",
            "path": path,
            "embedded": "code",
            "length": LENGTH,
            "vocab_size": VOCABULARY,
        },
        "batch_size": batch_size,
        "steps": steps,
        "optimizer": {
            "kind": "adamw",
            "schedule": {"kind": "cosine", "peak": 3e-3, "warmup_steps": min(50, max(steps, 0) // 4)},
            "weight_decay": 0.1,
        },
        "seed": seed,
        "log_every": 10,
        "evaluate_every": max(steps // 2, 1),
        # An interrupted run saves anyway; short runs need no checkpoint on the way.
        "checkpoint_every": max(steps // 2, 100),
    }
