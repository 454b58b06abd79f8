"""One head, many layers: a shallow multi-head model and its deep single-head equal, on WikiText-2 or LM1B.

    export HEADJAX_DATA=...   # the folder that holds lm/
    headjax train --config configs/small/deep.py:variant=deep_admin,seed=0 --workdir runs/deep-admin-0

Variants, of nearly equal parameters (docs/deep_training.md has what was measured):

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
    """Arguments: variant, text (wikitext2, lm1b), num_heads, num_layers, width, steps, batch_size, peak, warmup, seed.

    `peak` is the learning rate after `warmup` steps; `initialization` names another one than the variant's.
    """
    knobs = parse_arguments(
        arg,
        variant="deep_admin",
        text="wikitext2",
        num_heads=8,
        num_layers=3,
        width=64,
        steps=300,
        batch_size=8,
        peak=2e-3,
        warmup=30,
        seed=0,
        initialization="",
    )
    for name, value, known in (("variant", knobs.variant, VARIANTS), ("text", knobs.text, TEXTS)):
        if value not in known:
            raise ConfigError(f"{name}: {unknown_name(name, value, known)}")
    deep = knobs.variant.startswith("deep")
    shallow = {
        "kind": "language_model",
        "vocab_size": 257,
        "max_length": 32,
        "width": knobs.width,
        "num_layers": knobs.num_layers,
        "attention": {
            "kind": "multi_head",
            "num_heads": knobs.num_heads,
            "head_dim": knobs.width // knobs.num_heads,
            "rotary": {"kind": "rotary_halves"},
        },
        "feed_forward": {"kind": "dense", "hidden": 4 * knobs.width, "activation": "relu"},
        "residual": {"kind": "pre_norm" if knobs.variant.endswith("pre_norm") else "post_norm"},
        "positions": {"kind": "no_positions"},
        "embedding_norm": {"kind": "layer_norm"},
        "initializer": {"kind": "sliced_xavier", "slices": knobs.num_heads if deep else 1},
        "dropout": 0.1,
    }
    kind = knobs.initialization or ("admin" if knobs.variant == "deep_admin" else "")
    return ConfigDict(
        {
            "model": {"kind": "deep", "of": shallow} if deep else shallow,
            "data": {
                "kind": "language",
                "path": f"{os.environ.get('HEADJAX_DATA', 'data')}/lm/{TEXTS[knobs.text]}",
                "length": 32,
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
            **({"initialization": {"kind": kind}} if kind else {}),
        }
    )
