"""One head, many layers: a shallow multi-head model and its deep single-head equal, on real text.

    export HEADJAX_DATA=...   # the folder that holds lm/ and mt/
    headjax train --config configs/small/deep.py:variant=deep_admin,seed=0 --workdir runs/deep-admin-0
    headjax train --config configs/small/deep.py:text=multi30k,variant=deep_admin --workdir runs/deep-translation

Variants, of nearly equal parameters (docs/deep.md has what was measured):

* `post_norm`: num_heads heads in num_layers layers, LN(x + f(x));
* `deep`: one head of the same size in num_heads * num_layers layers, feed-forward layers cut alike;
* `deep_admin`: the same with Admin's profiling pass;
* `deep_pre_norm`: the same with x + f(LN(x));
* `pre_norm`: the shallow one with x + f(LN(x)).

WikiText-2 and LM1B are read byte by byte, so that few steps tell models that learn from models that do not. Multi30k's
captions are translated from English to German, with encoder and decoder of num_layers layers each.
"""

import os
from typing import Any

from ml_collections import ConfigDict

from headjax.core.errors import ConfigError
from headjax.core.fields import parse_arguments, unknown_name

VARIANTS = ("post_norm", "deep", "deep_admin", "deep_pre_norm", "pre_norm")
LANGUAGE = {"wikitext2": "lm/wikitext-2-raw/wiki.valid.raw", "lm1b": "lm/lm1b_heldout.dev.tokens"}
TEXTS = (*LANGUAGE, "multi30k")
PIECES = 4000


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: variant, text (wikitext2, lm1b, multi30k), num_heads, num_layers, width, steps, batch_size, seed.

    And `peak`, the learning rate after `warmup` steps; `initialization` names another one than the variant's.
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
    kind, data = _data(knobs.text)
    initialization = knobs.initialization or ("admin" if knobs.variant == "deep_admin" else "")
    return ConfigDict(
        {
            "model": kind | _layers(knobs, slices=knobs.num_heads if deep else 1),
            "deep": int(deep),
            "data": data,
            "batch_size": knobs.batch_size,
            "steps": knobs.steps,
            "optimizer": {
                "kind": "adamw",
                "schedule": {
                    "kind": "cosine",
                    "peak": knobs.peak,
                    "warmup_steps": min(knobs.warmup, knobs.steps),
                    "final": 0.1,
                },
                "b2": 0.98,
                "weight_decay": 0.0,
                "clip_norm": 0.0,
            },
            "log_every": 10,
            "evaluate_every": 100,
            "checkpoint_every": 10_000,
            "diverged_above": 12.0,
            "seed": knobs.seed,
            **({"initialization": {"kind": initialization}} if initialization else {}),
        }
    )


def _layers(knobs: Any, slices: int) -> dict[str, Any]:
    """The parts of the model that all texts share."""
    return {
        "width": knobs.width,
        "num_layers": knobs.num_layers,
        "attention": {
            "kind": "multi_head",
            "num_heads": knobs.num_heads,
            "head_dim": knobs.width // knobs.num_heads,
            **({} if knobs.text == "multi30k" else {"rotary": {"kind": "rotary_halves"}}),
        },
        "hidden": 4 * knobs.width,
        "activation": "relu",
        "residual": "pre_norm" if knobs.variant.endswith("pre_norm") else "post_norm",
        "initializer": {"kind": "sliced_xavier", "slices": slices},
        "dropout": 0.1,
    }


def _data(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is particular to the model of a text, and its data."""
    folder = os.environ.get("HEADJAX_DATA", "data")
    if text == "multi30k":
        captions = f"{folder}/mt/multi30k"
        translation = {
            "kind": "encoder_decoder",
            "vocab_size": PIECES,
            "positions": "sinusoidal",
            "scale_embeddings": True,
            "token_initializer": {"kind": "fan_out"},
            "label_smoothing": 0.1,
        }
        return translation, {
            "task": f"translation:{captions}/train:en-de",
            "validation": f"{captions}/test_2016_flickr",
            "vocab_size": PIECES,
            "length": 64,
            "buckets": (16, 24, 32),
        }
    model = {
        "kind": "decoder",
        "vocab_size": 257,
        "max_length": 32,
        "positions": "none",
        "embedding_norm": True,
    }
    return model, {"task": f"text:{folder}/{LANGUAGE[text]}", "length": 32, "tokenizer": "bytes"}
