r"""Shapes of heads at one width: how many, how large, with keys of their own or shared ones; WikiText-2 byte by byte.

    export HEADJAX_DATA=...   # the folder that holds lm/
    headjax train --config configs/small/head_shapes.py:heads=16,head_dim=32 --workdir runs/heads
    python -m results.grid runs/shapes --config configs/small/head_shapes.py --seeds 3 \
        --over heads,head_dim=4,32/16,8/16,32

docs/results.md has what was measured. Bytes make models need their attention after a few hundred steps: what comes
next depends on the word's beginning.
"""

import os
from types import SimpleNamespace
from typing import Any

from ml_collections import ConfigDict

from headjax.core.errors import ConfigError
from headjax.core.fields import parse_arguments


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: heads, head_dim, value_dim, kv_heads, shared_dim, width, num_layers, hidden, length, steps, ...

    And batch_size, peak, seed. `head_dim` 0 is width / heads, `value_dim` 0 the head_dim, `hidden` 0 four times the
    width. `kv_heads` groups the heads, and `shared_dim` is the size of shared queries and keys, 0 gives every head its
    own: collaborative attention, which starts as the multi-head attention of heads of size shared_dim / heads.
    """
    knobs = parse_arguments(
        arg,
        heads=4,
        head_dim=0,
        value_dim=0,
        kv_heads=0,
        shared_dim=0,
        width=128,
        num_layers=2,
        hidden=0,
        steps=500,
        batch_size=16,
        length=128,
        peak=3e-3,
        seed=0,
    )
    folder = f"{os.environ.get('HEADJAX_DATA', 'data')}/lm/wikitext-2-raw"
    return ConfigDict(
        {
            "model": {
                "kind": "decoder",
                "vocab_size": 257,
                "max_length": knobs.length,
                "width": knobs.width,
                "num_layers": knobs.num_layers,
                "attention": _attention(knobs),
                "hidden": knobs.hidden or 4 * knobs.width,
            },
            "data": {
                "task": f"text:{folder}/wiki.train.raw.gz",
                "validation": f"{folder}/wiki.valid.raw",
                "length": knobs.length,
                "tokenizer": "bytes",
            },
            "batch_size": knobs.batch_size,
            "steps": knobs.steps,
            "optimizer": {
                "kind": "adamw",
                "schedule": {"kind": "cosine", "peak": knobs.peak, "warmup_steps": min(50, knobs.steps // 4)},
                "weight_decay": 0.1,
            },
            "seed": knobs.seed,
            "checkpoint_every": 10_000,
            "tensorboard": False,
        }
    )


def _attention(knobs: SimpleNamespace) -> dict[str, Any]:
    """Heads with queries and keys of their own, in groups, or with shared ones."""
    if knobs.kv_heads and knobs.shared_dim:
        raise ConfigError("kv_heads: heads with shared queries and keys have no groups; leave out one of them")
    if not knobs.head_dim and (knobs.heads < 1 or knobs.width % knobs.heads):
        raise ConfigError(f"heads: {knobs.heads} does not divide the width of {knobs.width}; give head_dim")
    size = knobs.head_dim or knobs.width // knobs.heads
    values = knobs.value_dim or size
    if knobs.shared_dim:
        return {
            "kind": "collaborative",
            "num_heads": knobs.heads,
            "head_dim": max(1, knobs.shared_dim // knobs.heads),
            "value_dim": values,
            "shared_dim": knobs.shared_dim,
            "mixing_init": {"kind": "concatenate"},
        }
    attention = {"kind": "multi_head", "num_heads": knobs.heads, "head_dim": size, "value_dim": values}
    return attention | {"kind": "grouped", "kv_heads": knobs.kv_heads} if knobs.kv_heads else attention
