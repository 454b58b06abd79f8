"""One head, many layers: a shallow multi-head model and its deep single-head equal, on WikiText-2 or LM1B.

    export HEADJAX_DATA=...   # the folder that holds lm/
    headjax train --config configs/small/deep.py:variant=deep_admin,seed=0 --workdir runs/deep-admin-0

Variants, of nearly equal parameters (see docs/deep_training.md, which has what was measured):

* `post_norm`: num_heads heads in num_layers layers, LN(x + f(x));
* `deep`: one head of the same size in num_heads * num_layers layers, feed-forward layers cut alike;
* `deep_admin`: the same with Admin's profiling pass;
* `deep_pre_norm`: the same with x + f(LN(x));
* `pre_norm`: the shallow one with x + f(LN(x)).

The text is read byte by byte, so that few steps tell models that learn from models that do not.
"""

import os

from ml_collections import ConfigDict

from headjax.configuration import parse_arguments
from headjax.errors import ConfigError
from headjax.serialize import unknown_name

VARIANTS = ("post_norm", "deep", "deep_admin", "deep_pre_norm", "pre_norm")
TEXTS = {"wikitext2": "wikitext-2-raw/wiki.valid.raw", "lm1b": "lm1b_heldout.dev.tokens"}


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: variant, text (wikitext2, lm1b), num_heads, num_layers, width, steps, batch_size, peak, seed.

    `peak` is the learning rate after `warmup` steps; `initialization` names another one than the variant's.
    """
    knobs = parse_arguments(
        arg,
        variant="deep_admin",
        text="wikitext2",
        num_heads=8,
        num_layers=6,
        width=64,
        steps=400,
        batch_size=16,
        peak=3e-3,
        warmup=40,
        seed=0,
        initialization="",
    )
    if knobs.variant not in VARIANTS:
        raise ConfigError(f"variant: {unknown_name('variant', knobs.variant, VARIANTS)}")
    if knobs.text not in TEXTS:
        raise ConfigError(f"text: {unknown_name('text', knobs.text, TEXTS)}")
    parts = knobs.num_heads if knobs.variant.startswith("deep") else 1
    config = {
        "model": {
            "kind": "language_model",
            "vocab_size": 257,
            "max_length": 64,
            "width": knobs.width,
            "num_layers": parts * knobs.num_layers,
            "attention": {
                "kind": "multi_head",
                "num_heads": knobs.num_heads // parts,
                "head_dim": knobs.width // knobs.num_heads,
            },
            "feed_forward": {"kind": "dense", "hidden": 4 * knobs.width // parts, "activation": "relu"},
            "residual": {"kind": "pre_norm" if knobs.variant.endswith("pre_norm") else "post_norm"},
            "embedding_norm": {"kind": "layer_norm"},
            "initializer": {"kind": "sliced_xavier", "slices": parts},
            "dropout": 0.1,
        },
        "data": {
            "kind": "language",
            "path": f"{os.environ.get('HEADJAX_DATA', 'data')}/lm/{TEXTS[knobs.text]}",
            "length": 64,
            "tokenizer": "bytes",
        },
        "batch_size": knobs.batch_size,
        "steps": knobs.steps,
        "optimizer": {
            "kind": "adamw",
            "schedule": {"kind": "cosine", "peak": knobs.peak, "warmup_steps": knobs.warmup, "final": 0.1},
            "b2": 0.98,
            "weight_decay": 0.0,
            "clip_norm": 0.0,
        },
        "log_every": 10,
        "evaluate_every": 100,
        "checkpoint_every": 10_000,
        "diagnose_every": 100,
        "diverged_above": 12.0,
        "seed": knobs.seed,
    }
    kind = knobs.initialization or {"deep_admin": "admin"}.get(knobs.variant)
    return ConfigDict(config | ({"initialization": {"kind": kind}} if kind else {}))
