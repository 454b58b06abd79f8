"""Cordonnier, Loukas, Jaggi 2020, "Multi-Head Attention: Collaborate Instead of Concatenate" (arXiv 2006.16362): DeiT.

ImageNet. DeiT-B made collaborative after training, and Base3 (3 layers) trained from scratch with `key_dim` key and
query dimensions, cut among the heads or shared by them. Parameters in millions:

    layers=12    concatenate      768: 86.57
                 collaborative    384: 79.64, 256: 77.26, 128: 74.88
    layers=3     concatenate      768: 22.78, 384: 21.01, 192: 20.12, 96: 19.68
                 collaborative    384: 21.04, 192: 20.15, 96: 19.71

DeiT-B without distillation has a top-1 accuracy of 81.8; the paper's tables are not at hand. DeiT's recipe: 300 epochs
in batches of 1024, AdamW at 0.001 (0.0005 for every 512 images) after 5 epochs of warm-up, weight decay 0.05, label
smoothing 0.1.

    headjax inspect --config configs/papers/collaborative_deit.py:layers=3,key_dim=192,collaborative
    headjax prepare imagenet --out D
    headjax train --config configs/papers/collaborative_deit.py:layers=3,key_dim=192,collaborative,data=D --workdir B
"""

from ml_collections import ConfigDict

from headjax.configuration import parse_arguments
from headjax.errors import ConfigError

HEADS, HEAD_DIM = 12, 64
STEPS_PER_EPOCH = 1251
"""1,281,167 images in batches of 1024."""


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: layers, key_dim, collaborative, classes, data, seed."""
    knobs = parse_arguments(arg, layers=12, key_dim=768, collaborative=False, classes=1000, data="", seed=0)
    if knobs.collaborative:
        attention = {
            "kind": "collaborative",
            "num_heads": HEADS,
            "shared_dim": knobs.key_dim,
            "value_dim": HEAD_DIM,
            "head_dim": HEAD_DIM,
            "content_bias": True,
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
            "scale": HEAD_DIM**-0.5,
        }
    return ConfigDict(
        {
            "model": {
                "kind": "vit",
                "width": 768,
                "num_layers": knobs.layers,
                "attention": attention,
                "feed_forward": {"kind": "dense", "hidden": 3072, "activation": "gelu"},
                "task": {
                    "kind": "classification",
                    "classes": knobs.classes,
                    "dropout": 0.0,
                    "label_smoothing": 0.1,
                },
            },
            "data": {"kind": "task", "task": "imagenet", "path": knobs.data, "size": 224},
            "batch_size": 1024,
            "steps": 300 * STEPS_PER_EPOCH,
            "optimizer": {
                "kind": "adamw",
                "schedule": {"kind": "cosine", "peak": 1e-3, "warmup_steps": 5 * STEPS_PER_EPOCH, "final": 0.01},
                "b2": 0.999,
                "weight_decay": 0.05,
                "clip_norm": 0.0,
            },
            "compute": {"dtype": "bfloat16"},
            "seed": knobs.seed,
            "log_every": 100,
            "evaluate_every": STEPS_PER_EPOCH,
            "checkpoint_every": STEPS_PER_EPOCH,
        }
    )
