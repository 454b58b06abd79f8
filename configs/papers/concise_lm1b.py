"""Bhojanapalli et al. 2020, "Low-Rank Bottleneck in Multi-head Attention Models" (arXiv 2002.07028): LM1B.

A 6-layer decoder with a feed-forward width of 1024, 32,000 tokens and no biases; perplexity against parameters when the
width grows (standard heads) or the number of heads does (fixed head size 32 at width 256). Parameters in millions:

    standard   width=256, 320, 384, 448, 512                                12.9, 16.6, 20.6, 24.7, 29.0
    fixed      head_dim=32, heads=4, 8, 16, 32, 48, 64, 70 (width 256)      12.1, 12.9, 14.5, 17.6, 20.8, 23.9, 25.1

The figures' perplexities are not printed. Learning rate 0.1 / sqrt(max(step, 10,000)), which peaks at 0.001.
Cost in the paper: a couple of hours on 4 TPUv2 chips (v2-8).

    headjax inspect --config configs/papers/concise_lm1b.py:heads=70,head_dim=32
    headjax prepare lm1b --out D
    headjax train --config configs/papers/concise_lm1b.py:heads=70,head_dim=32,data=D --workdir runs/lm1b
"""

from ml_collections import ConfigDict

from headjax.configuration import parse_arguments


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: width, heads, head_dim (0 is width / heads), data, seed."""
    knobs = parse_arguments(arg, width=256, heads=8, head_dim=0, data="", seed=0)
    attention = {
        "kind": "multi_head",
        "num_heads": knobs.heads,
        "head_dim": knobs.head_dim or knobs.width // knobs.heads,
        "projection_bias": False,
        "output_bias": False,
    }
    return ConfigDict(
        {
            "model": {
                "kind": "language_model",
                "vocab_size": 32_000,
                "max_length": 256,
                "width": knobs.width,
                "num_layers": 6,
                "attention": attention,
                "feed_forward": {"kind": "dense", "hidden": 1024, "activation": "relu", "bias": False},
                "residual": {"kind": "post_norm"},
                "positions": {"kind": "sinusoidal", "endpoint": True},
                "dropout": 0.1,
                "attention_dropout": 0.1,
            },
            "data": {"kind": "task", "task": "lm1b", "path": knobs.data, "length": 256},
            "batch_size": 4096,
            "steps": 250_000,
            "optimizer": {
                "kind": "adamw",
                "schedule": {"kind": "inverse_square_root", "peak": 1e-3, "warmup_steps": 10_000},
                "weight_decay": 0.01,
            },
            "seed": knobs.seed,
            "log_every": 100,
            "evaluate_every": 10_000,
            "checkpoint_every": 5000,
        }
    )
