"""Cordonnier, Loukas, Jaggi 2020, "Multi-Head Attention: Collaborate Instead of Concatenate" (arXiv 2006.16362): NMT.

Transformer-base trained from scratch on WMT16 English-German (the WMT14 test set), with `key_dim` key and query
dimensions in all heads together, either cut among the heads or shared by them (`collaborative`). Parameters with a
vocabulary of 32,768, and BLEU:

    key_dim          512                  256                  128                  64
    concatenate      60,915,712  27.40    56,187,904  27.10    53,824,000  26.89    52,642,048  26.77
    collaborative    60,989,440  27.58    56,224,768  27.41    53,842,432  27.40    52,651,264  27.31

Heads that were cut keep the scale 1 / sqrt(64) in the paper's code, whatever their size; `scale=cut` takes 1 / sqrt of
their own size instead, the fair comparison. 28,672 tokens a step on 4 GPUs; the number of steps is not stated.

    headjax inspect --config configs/papers/collaborative_nmt.py:key_dim=128,collaborative
    headjax prepare wmt16_ende --out D
    headjax train --config configs/papers/collaborative_nmt.py:key_dim=128,collaborative,data=D --workdir runs/shared
"""

from ml_collections import ConfigDict

from headjax.configuration import parse_arguments
from headjax.errors import ConfigError

HEADS, HEAD_DIM = 8, 64


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: key_dim, collaborative, scale (paper, cut), vocab_size, data, seed."""
    knobs = parse_arguments(arg, key_dim=512, collaborative=False, scale="paper", vocab_size=32_768, data="", seed=0)
    if knobs.scale not in ("paper", "cut"):
        raise ConfigError(f"scale: expected paper or cut, got {knobs.scale!r}")
    if knobs.collaborative:
        attention = {
            "kind": "collaborative",
            "num_heads": HEADS,
            "shared_dim": knobs.key_dim,
            "value_dim": HEAD_DIM,
            "head_dim": HEAD_DIM,
            "mixing_init": {"kind": "xavier"},
            "projection_bias": True,
        }
    else:
        if knobs.key_dim % HEADS:
            raise ConfigError(f"key_dim: {knobs.key_dim} does not divide among {HEADS} heads")
        head_dim = knobs.key_dim // HEADS
        attention = {
            "kind": "multi_head",
            "num_heads": HEADS,
            "head_dim": head_dim,
            "value_dim": HEAD_DIM,
            "scale": (HEAD_DIM if knobs.scale == "paper" else head_dim) ** -0.5,
        }
    return ConfigDict(
        {
            "model": {
                "kind": "translation",
                "vocab_size": knobs.vocab_size,
                "width": 512,
                "num_layers": 6,
                "attention": attention,
                "feed_forward": {"kind": "dense", "hidden": 2048, "activation": "relu"},
                "positions": {"kind": "sinusoidal", "endpoint": True},
                "dropout": 0.1,
                "label_smoothing": 0.1,
            },
            "data": {"kind": "task", "task": "wmt16_ende", "path": knobs.data, "length": 256},
            # 112 packed examples of 256 tokens are the 4 x 3584 x 2 tokens of the recipe.
            "batch_size": 112,
            "steps": 100_000,
            "optimizer": {
                "kind": "adamw",
                "schedule": {"kind": "inverse_square_root", "peak": 7e-4, "warmup_steps": 4000},
                "b1": 0.9,
                "b2": 0.98,
                "weight_decay": 0.0,
                "clip_norm": 0.0,
            },
            "compute": {"dtype": "bfloat16"},
            "seed": knobs.seed,
            "log_every": 100,
            "evaluate_every": 5000,
            "checkpoint_every": 5000,
        }
    )
