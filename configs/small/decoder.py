"""Decoders of today's shapes on WikiText-2, to prune and to convert: rotary positions, grouped heads, gated units.

    export HEADJAX_DATA=...   # the folder that holds lm/
    headjax train --config configs/small/decoder.py:shape=llama --workdir runs/llama
    headjax train --config configs/small/decoder.py:shape=qwen3 --workdir runs/qwen3

Both have 8 query and 4 key and value heads of size 32 in 6 layers of width 256, 5.8 M parameters, and 4,096 byte
pairs learned from the training split; `qwen3` normalises every query and key. They see the training split alone.
"""

import os
from typing import Any

from ml_collections import ConfigDict

from headjax.core.errors import ConfigError
from headjax.core.fields import parse_arguments, unknown_name

NORM = {"kind": "rms_norm", "epsilon": 1e-6}
SHAPES: dict[str, dict[str, Any]] = {"llama": {}, "qwen3": {"query_norm": NORM, "key_norm": NORM}}
"""Fields of the attention, by shape."""


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: shape (a name in SHAPES), steps, batch_size, length, peak (learning rate), width, num_layers, seed."""
    knobs = parse_arguments(
        arg,
        shape="llama",
        steps=3000,
        batch_size=8,
        length=256,
        peak=2e-3,
        width=256,
        num_layers=6,
        dropout=0.1,
        seed=0,
    )
    if knobs.shape not in SHAPES:
        raise ConfigError(f"shape: {unknown_name('shape', knobs.shape, SHAPES)}")
    folder = f"{os.environ.get('HEADJAX_DATA', 'data')}/lm/wikitext-2-raw"
    return ConfigDict(
        {
            "model": {
                "kind": "decoder",
                "vocab_size": 4096,
                "max_length": 4 * knobs.length,
                "width": knobs.width,
                "num_layers": knobs.num_layers,
                "attention": {
                    "kind": "grouped",
                    "num_heads": knobs.width // 32,
                    "kv_heads": knobs.width // 64,
                    "head_dim": 32,
                    "rotary": {"kind": "rotary_halves"},
                    **SHAPES[knobs.shape],
                },
                "hidden": 3 * knobs.width,
                "activation": "silu",
                "gated": True,
                "feed_forward_bias": False,
                "norm": NORM,
                "positions": "none",
                "dropout": knobs.dropout,
            },
            "data": {
                "task": f"text:{folder}/wiki.train.raw.gz",
                "validation": f"{folder}/wiki.valid.raw",
                "length": knobs.length,
                "vocab_size": 4096,
            },
            "batch_size": knobs.batch_size,
            "steps": knobs.steps,
            "optimizer": {
                "kind": "adamw",
                "schedule": {"kind": "cosine", "peak": knobs.peak, "warmup_steps": min(200, knobs.steps // 4)},
                "weight_decay": 0.1,
            },
            "seed": knobs.seed,
            "evaluate_every": 1000,
            "checkpoint_every": 500,
        }
    )
