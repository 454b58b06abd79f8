"""Michel, Levy, Neubig 2019, "Are Sixteen Heads Really Better than One?" (arXiv 1905.10650): WMT14 English-French.

Transformer-big, 6 layers of 16 heads in each of encoder, decoder and cross-attention (288 heads), BLEU 36.05 on
newstest2013 with all of them. About 20% can be removed without a noticeable loss; most of the cross-attention's cannot:
the last layer alone loses 13.56 BLEU with one head left. A head is 262,336 parameters.

The paper prunes the trained model of Ott et al. (2018) and trains none of this size itself; the optimizer here is that
of transformer-base, and the size of the vocabulary is not stated.

    headjax inspect --config configs/papers/sixteen_heads_wmt.py
    headjax prepare wmt14_enfr --out D
    headjax score MODEL --task wmt14_enfr
"""

from ml_collections import ConfigDict

from headjax.configuration import parse_arguments


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: vocab_size, data, seed."""
    knobs = parse_arguments(arg, vocab_size=44_512, data="", seed=0)
    return ConfigDict(
        {
            "model": {
                "kind": "translation",
                "vocab_size": knobs.vocab_size,
                "width": 1024,
                "num_layers": 6,
                "attention": {"kind": "multi_head", "num_heads": 16, "head_dim": 64},
                "feed_forward": {"kind": "dense", "hidden": 4096, "activation": "relu"},
                "positions": {"kind": "sinusoidal", "endpoint": True},
                "dropout": 0.1,
                "label_smoothing": 0.1,
            },
            "data": {"kind": "task", "task": "wmt14_enfr", "path": knobs.data, "length": 256},
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
