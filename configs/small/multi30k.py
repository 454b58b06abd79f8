"""Translation of image captions: Multi30k, English to German, from scratch.

    export HEADJAX_DATA=...   # the folder that holds mt/multi30k
    headjax train --config configs/small/multi30k.py --workdir runs/multi30k

Measured (2000 steps of 128 pairs, nine epochs, 7,066,624 parameters, about 45 minutes of CPU time): perplexity 5.90 per
token and 13.5 per word on the 1,000 captions of test_2016_flickr, and BLEU 36.5 with 4 beams
(nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0):

    model = headjax.load("runs/multi30k/model")
    captions = headjax.load_task(f"translation:{folder}/mt/multi30k/test_2016_flickr:en-de", model).data.validation
    headjax.translate(model, captions, beams=4, max_new_tokens=40).bleu
"""

import os
from types import SimpleNamespace
from typing import Any

from ml_collections import ConfigDict

from headjax.core.errors import ConfigError
from headjax.core.fields import parse_arguments

DEFAULTS = {
    "steps": 2000,
    "batch_size": 128,
    "peak": 1.5e-3,
    "width": 256,
    "num_layers": 3,
    "num_heads": 4,
    "head_dim": 0,
    "shared_dim": 0,
    "seed": 0,
}


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: steps, batch_size, peak (learning rate), width, num_layers, num_heads, head_dim, shared_dim, seed.

    `head_dim` is the size of a head's queries and keys, 0 is width / num_heads, which is that of values in any case.
    `shared_dim` is the size of queries and keys that all heads share, 0 gives every head its own: collaborative
    attention, which starts as the multi-head attention of heads of size shared_dim / num_heads.
    """
    knobs = parse_arguments(arg, **DEFAULTS)
    folder = f"{os.environ.get('HEADJAX_DATA', 'data')}/mt/multi30k"
    return ConfigDict(
        {
            "model": {
                "kind": "encoder_decoder",
                "vocab_size": 6000,
                "width": knobs.width,
                "num_layers": knobs.num_layers,
                "attention": _attention(knobs),
                "hidden": 4 * knobs.width,
                "activation": "relu",
                "residual": "pre_norm",
                "positions": "sinusoidal",
                "scale_embeddings": True,
                "token_initializer": {"kind": "fan_out"},
                "initializer": {"kind": "xavier"},
                "dropout": 0.1,
                "label_smoothing": 0.1,
            },
            "data": {
                "task": f"translation:{folder}/train:en-de",
                "validation": f"{folder}/test_2016_flickr",
                "vocab_size": 6000,
                "length": 64,
                "buckets": (16, 24, 32),
            },
            "batch_size": knobs.batch_size,
            "steps": knobs.steps,
            "optimizer": {
                "kind": "adamw",
                "schedule": {
                    "kind": "cosine",
                    "peak": knobs.peak,
                    "warmup_steps": min(200, knobs.steps),
                    "final": 0.01,
                },
                "b2": 0.98,
            },
            "evaluate_every": 500,
            "checkpoint_every": 500,
            "seed": knobs.seed,
        }
    )


def _attention(knobs: SimpleNamespace) -> dict[str, Any]:
    """Heads with queries and keys of their own, or with shared ones."""
    if knobs.num_heads < 1 or knobs.width % knobs.num_heads:
        raise ConfigError(f"num_heads: {knobs.num_heads} does not divide the width of {knobs.width}")
    if knobs.head_dim and knobs.shared_dim:
        raise ConfigError("head_dim: heads with shared queries and keys have no size of their own; leave one out")
    size = knobs.width // knobs.num_heads
    if knobs.shared_dim:
        return {
            "kind": "collaborative",
            "num_heads": knobs.num_heads,
            "head_dim": max(1, knobs.shared_dim // knobs.num_heads),
            "value_dim": size,
            "shared_dim": knobs.shared_dim,
            "mixing_init": {"kind": "concatenate"},
        }
    attention = {"kind": "multi_head", "num_heads": knobs.num_heads, "head_dim": size}
    return attention | {"head_dim": knobs.head_dim, "value_dim": size} if knobs.head_dim else attention
