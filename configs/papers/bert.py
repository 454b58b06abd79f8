"""Liu, Liu, Han 2021, "Multi-head or Single-head?" (arXiv 2106.09650): BERT.

Shallow with many heads, or `deep` with one: every head of a layer and its share of the feed-forward sub-layer become a
layer of their own, so that there are as many heads, one to a layer:

    size=base          12 heads, 12 layers     110,106,428 parameters
    size=base,deep      1 head, 144 layers     110,714,684
    size=large         16 heads, 24 layers     336,226,108
    size=large,deep     1 head, 384 layers     338,437,948

In the paper 144 layers converge but depend on the initialisation, and 384 do not converge without Admin. The model is
the full pre-training graph, with pooler and both outputs.

    headjax inspect --config configs/papers/bert.py:size=base,deep
    headjax prepare bert_pretraining --tokenizer vocab.txt --out D
    headjax train --config configs/papers/bert.py:size=base,deep,data=D --workdir runs/deep
"""

from ml_collections import ConfigDict

from headjax.configuration import parse_arguments
from headjax.errors import ConfigError

SIZES = {"base": (768, 12, 12), "large": (1024, 16, 24)}
"""Width, heads and layers."""


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: size (base, large), deep, length, data, seed."""
    knobs = parse_arguments(arg, size="base", deep=False, length=128, data="", seed=0)
    if knobs.size not in SIZES:
        raise ConfigError(f"size: expected base or large, got {knobs.size!r}")
    width, heads, layers = SIZES[knobs.size]
    split = heads if knobs.deep else 1
    return ConfigDict(
        {
            "model": {
                "kind": "bert",
                "vocab_size": 30522,
                "max_length": 512,
                "width": width,
                "num_layers": layers * split,
                "attention": {"kind": "multi_head", "num_heads": heads // split, "head_dim": 64},
                "feed_forward": {"kind": "dense", "hidden": 4 * width // split, "activation": "gelu"},
                "task": {"kind": "pretraining"},
            },
            "data": {"kind": "task", "task": "bert_pretraining", "path": knobs.data, "length": knobs.length},
            "batch_size": 256,
            "steps": 1_000_000,
            "optimizer": {
                "kind": "adamw",
                "schedule": {"kind": "linear_decay", "peak": 1e-4, "warmup_steps": 10_000},
                "b2": 0.999,
                "epsilon": 1e-6,
                "weight_decay": 0.01,
            },
            "compute": {"dtype": "bfloat16", "remat": "full"},
            "seed": knobs.seed,
            "log_every": 100,
            "evaluate_every": 10_000,
            "checkpoint_every": 5000,
        }
    )
