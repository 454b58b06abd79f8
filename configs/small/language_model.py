"""Language models on LM1B's held-out text and on WikiText-2, from local files.

    export HEADJAX_DATA=...   # the folder that holds lm/
    headjax train --config configs/small/language_model.py:corpus=wikitext2 --workdir runs/wikitext2
    headjax evaluate runs/wikitext2/model --task $HEADJAX_DATA/lm/wikitext-2-raw/wiki.valid.raw

A twentieth of each file is held out, piece by piece; the vocabulary is learned from the rest.

Measured on held-out text with corpus=wikitext2,steps=300 (600,000 tokens, 1.6 minutes of CPU time on 2 shared cores):
perplexity 286 per token, 15,400 per word (parted by white space), 2.59 bits per byte. With corpus=lm1b,steps=200
(400,000 tokens): 271 per token, 23,200 per word, 2.69 bits per byte. So short a run has learned which words are
frequent and little else.
"""

import os

from ml_collections import ConfigDict

from headjax.core.errors import ConfigError
from headjax.core.fields import parse_arguments, unknown_name

CORPORA = {"lm1b": "lm/lm1b_heldout.dev.tokens", "wikitext2": "lm/wikitext-2-raw/wiki.valid.raw"}
"""Files under HEADJAX_DATA."""


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: corpus (a name in CORPORA), steps, batch_size, peak (learning rate), width, num_layers, seed."""
    knobs = parse_arguments(
        arg, corpus="wikitext2", steps=600, batch_size=16, peak=3e-3, width=128, num_layers=4, seed=0
    )
    if knobs.corpus not in CORPORA:
        raise ConfigError(f"corpus: {unknown_name('corpus', knobs.corpus, CORPORA)}")
    return ConfigDict(
        {
            "model": {
                "kind": "decoder",
                "vocab_size": 2000,
                "max_length": 128,
                "width": knobs.width,
                "num_layers": knobs.num_layers,
                "attention": {"kind": "multi_head", "num_heads": knobs.width // 32, "head_dim": 32},
                "hidden": 4 * knobs.width,
                "dropout": 0.1,
            },
            "data": {
                "task": f"text:{os.environ.get('HEADJAX_DATA', 'data')}/{CORPORA[knobs.corpus]}",
                "length": 128,
                "vocab_size": 2000,
            },
            "batch_size": knobs.batch_size,
            "steps": knobs.steps,
            "optimizer": {
                "kind": "adamw",
                "schedule": {"kind": "cosine", "peak": knobs.peak, "warmup_steps": knobs.steps // 10},
                "weight_decay": 0.1,
            },
            "seed": knobs.seed,
        }
    )
