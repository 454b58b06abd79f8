"""Bhojanapalli et al. 2020, "Low-Rank Bottleneck in Multi-head Attention Models" (arXiv 2002.07028): LM1B.

A 6-layer decoder with a feed-forward width of 1024, 32,000 tokens and no biases; perplexity against parameters when the
width grows (standard heads) or the number of heads does (fixed head size 32 at width 256). Parameters in millions:

    standard   width=256, 320, 384, 448, 512                                12.9, 16.6, 20.6, 24.7, 29.0
    fixed      head_dim=32, heads=4, 8, 16, 32, 48, 64, 70 (width 256)      12.1, 12.9, 14.5, 17.6, 20.8, 23.9, 25.1

The figures' perplexities are not printed. Learning rate 0.1, warm-up of 10,000 steps, reciprocal square root: that is
0.1 * min(1, step / 10,000) / sqrt(max(step, 10,000)), a straight line up to 0.001, then 0.1 / sqrt(step).
Cost in the paper: a couple of hours for 250,000 steps on 4 TPUv2 chips (v2-8), with a batch of 4096 and no unit. Only
tokens on each of the 8 cores, Tensor2Tensor's way to count, agree with that cost: 128 packed examples of 256 tokens,
one hour at the chips' peak. 4096 examples would take 33 there.

    headjax inspect --config configs/papers/concise_lm1b.py:heads=70,head_dim=32
    headjax prepare lm1b --out D
    headjax train --config configs/papers/concise_lm1b.py:heads=70,head_dim=32,data=D --workdir runs/lm1b
    headjax train --config configs/papers/concise_lm1b.py:heads=70,head_dim=32,smoke --workdir runs/smoke
"""

from common import adam, arguments, experiment, multi_head, recipe_of, run_of
from ml_collections import ConfigDict


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: width, heads, head_dim (0 is width / heads), data, seed, smoke."""
    knobs = arguments(arg, width=256, heads=8, head_dim=0)
    head_dim = knobs.head_dim or knobs.width // knobs.heads
    recipe = recipe_of("lm1b", "Bhojanapalli 2020")
    return experiment(
        knobs,
        model={
            "kind": "decoder",
            "vocab_size": 32_000,
            "max_length": 256,
            "width": knobs.width,
            "num_layers": 6,
            "attention": multi_head(knobs.heads, head_dim, projection_bias=False, output_bias=False),
            "hidden": 1024,
            "activation": "relu",
            "feed_forward_bias": False,
            "residual": "post_norm",
            "positions": "sinusoidal_endpoint",
            "dropout": 0.1,
            "attention_dropout": 0.1,
        },
        **run_of("lm1b", recipe),
        optimizer=adam(recipe, schedule="inverse_square_root", weight_decay=0.01),
    )
