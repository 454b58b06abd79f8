"""Liu, Liu, Han 2021, "Multi-head or Single-head?" (arXiv 2106.09650): translation, WMT14 English-German.

Transformer-base with 8 heads in 6 + 6 layers, or `deep` with one head in each of 48 + 48: every head and its share of
the feed-forward sub-layer become a layer of their own, cross-attention likewise (144 heads either way).

                60,915,712 parameters with 32,768 tokens
    deep        61,238,272

48 + 48 post-norm layers do not converge without Admin. The recipe is that of Admin's authors for WMT14 (RAdam, learning
rate 0.001 after 8000 steps, label smoothing 0.1, 32,768 tokens a step, 100 epochs of about 4000 steps); BLEU there at
6 + 6 layers: 27.80 post-norm, 27.90 with Admin.

    headjax inspect --config configs/papers/transformer_base.py:deep
    headjax prepare wmt14_ende --out D
    headjax train --config configs/papers/transformer_base.py:deep,data=D --workdir runs/deep
"""

from ml_collections import ConfigDict

from headjax.configuration import parse_arguments


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: deep, vocab_size, data, seed."""
    knobs = parse_arguments(arg, deep=False, vocab_size=32_768, data="", seed=1111)
    heads, split = 8, 8 if knobs.deep else 1
    return ConfigDict(
        {
            "model": {
                "kind": "translation",
                "vocab_size": knobs.vocab_size,
                "width": 512,
                "num_layers": 6 * split,
                "attention": {"kind": "multi_head", "num_heads": heads // split, "head_dim": 64},
                "feed_forward": {"kind": "dense", "hidden": 2048 // split, "activation": "relu"},
                "positions": {"kind": "sinusoidal", "endpoint": True},
                "dropout": 0.1,
                "attention_dropout": 0.1,
                "feed_forward_dropout": 0.1,
                "label_smoothing": 0.1,
            },
            "data": {"kind": "task", "task": "wmt14_ende", "path": knobs.data, "length": 256},
            # 128 packed examples of 256 tokens are the 4 x 8192 tokens of the recipe.
            "batch_size": 128,
            "steps": 400_000,
            "optimizer": {
                "kind": "radam",
                "schedule": {"kind": "inverse_square_root", "peak": 1e-3, "warmup_steps": 8000},
                "b1": 0.9,
                "b2": 0.98,
                "clip_norm": 0.0,
            },
            "compute": {"dtype": "bfloat16", "remat": "full"},
            "seed": knobs.seed,
            "log_every": 100,
            "evaluate_every": 5000,
            "checkpoint_every": 5000,
        }
    )
