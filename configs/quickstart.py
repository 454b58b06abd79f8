"""A small decoder language model on text that ships with Python, in three formulations of equal size.

headjax train --config configs/quickstart.py --workdir runs/standard
headjax train --config configs/quickstart.py:formulation=fixed --workdir runs/fixed
headjax train --config configs/quickstart.py:formulation=collaborative --workdir runs/collaborative
"""

from typing import Any

from ml_collections import ConfigDict

from headjax.core.errors import ConfigError
from headjax.core.fields import parse_arguments, unknown_name

HEADS = 8

# All three have 1.07 million parameters within 1 %: what a formulation saves in attention goes into its feed-forward.
FORMULATIONS: dict[str, dict[str, Any]] = {
    "standard": {  # divides the width among the heads
        "width": 128,
        "attention": {"kind": "multi_head", "num_heads": HEADS, "head_dim": 16},
        "hidden": 512,
    },
    "fixed": {  # heads of twice the size in a narrower model
        "width": 96,
        "attention": {"kind": "multi_head", "num_heads": HEADS, "head_dim": 32},
        "hidden": 600,
    },
    "collaborative": {  # heads share keys and queries of half the size
        "width": 128,
        "attention": {"kind": "collaborative", "num_heads": HEADS, "shared_dim": 64, "value_dim": 16, "head_dim": 16},
        "hidden": 576,
    },
}


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: formulation (standard, fixed, collaborative), steps, path (a text file, or a folder of them)."""
    knobs = parse_arguments(arg, formulation="standard", steps=400, path="")
    if knobs.formulation not in FORMULATIONS:
        raise ConfigError(f"formulation: {unknown_name('formulation', knobs.formulation, FORMULATIONS)}")
    steps = knobs.steps
    return ConfigDict(
        {
            "model": {
                "kind": "decoder",
                "vocab_size": 2048,
                "max_length": 256,
                "num_layers": 4,
                **FORMULATIONS[knobs.formulation],
            },
            "data": {
                "task": f"text:{knobs.path}" if knobs.path else "python_code",
                "length": 256,
                "vocab_size": 2048,
            },
            "batch_size": 4,
            "steps": steps,
            "optimizer": {
                "kind": "adamw",
                "schedule": {"kind": "cosine", "peak": 3e-3, "warmup_steps": min(50, max(steps, 0) // 4)},
                "weight_decay": 0.1,
            },
            "seed": 0,
            "log_every": 10,
            "evaluate_every": max(steps // 2, 1),
            # An interrupted run saves anyway; short runs need no checkpoint on the way.
            "checkpoint_every": max(steps // 2, 100),
        }
    )
