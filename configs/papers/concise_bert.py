"""Bhojanapalli et al. 2020, "Low-Rank Bottleneck in Multi-head Attention Models" (arXiv 2002.07028): BERT.

Tables 1 to 3: 24 layers, pre-trained on Wikipedia and BooksCorpus in two stages, then fine-tuned. Table 2 has a
feed-forward width of 4096 at every model width (that of BERT-large), table 3 has 4 times the width; the text does not
say so, the parameter counts do. Parameters, in millions as printed:

    table 1    width=1024,head_dim=W/heads, heads=8, 16, 32                                  336
    table 2A   width=512,head_dim=128,feed_forward=4096, heads=8, 12, 16, 32                 168, 193, 218, 319
    table 2B   width=512,heads=8,feed_forward=4096, head_dim=32, 64, 128, 256                130, 142, 168, 218
    table 3    width=768,head_dim=128,feed_forward=3072, heads=8, 12, 16, 20                 214, 252, 290, 327

Cost in the paper: 2 to 3 days, stage 1 on 16 TPUv3 chips (v3-32), stage 2 on 64 (v3-128).

    headjax inspect --config configs/papers/concise_bert.py:width=512,heads=32,head_dim=128,feed_forward=4096
    headjax prepare bert_pretraining --length 128 --tokenizer vocab.txt --out D
    headjax prepare bert_pretraining --length 512 --set max_predictions=80 --tokenizer vocab.txt --out E
    headjax train --config configs/papers/concise_bert.py:width=512,heads=32,head_dim=128,data=D --workdir runs/stage1
    headjax train --config configs/papers/concise_bert.py:stage=2,start=runs/stage1/model,data=E --workdir runs/stage2
"""

from ml_collections import ConfigDict

from headjax.configuration import parse_arguments


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: width, heads, head_dim (0 is width / heads), feed_forward, layers, stage (1, 2), start, data, seed."""
    knobs = parse_arguments(
        arg, width=1024, heads=16, head_dim=0, feed_forward=4096, layers=24, stage=1, start="", data="", seed=0
    )
    second = knobs.stage == 2
    attention = {
        "kind": "multi_head",
        "num_heads": knobs.heads,
        "head_dim": knobs.head_dim or knobs.width // knobs.heads,
    }
    model = {
        "kind": "bert",
        "vocab_size": 30522,
        "max_length": 512,
        "width": knobs.width,
        "num_layers": knobs.layers,
        "attention": attention,
        "feed_forward": {"kind": "dense", "hidden": knobs.feed_forward, "activation": "gelu"},
        "task": {"kind": "pretraining"},
        "dropout": 0.1,
        "attention_dropout": 0.1,
    }
    return ConfigDict(
        {
            "model": {"kind": "directory", "path": knobs.start} if knobs.start else model,
            "data": {"kind": "task", "task": "bert_pretraining", "path": knobs.data, "length": 512 if second else 128},
            "batch_size": 1024,
            "steps": 50_000 if second else 450_000,
            "optimizer": {
                "kind": "adamw",
                # The second stage warms up again.
                "schedule": {"kind": "linear_decay", "peak": 1e-4, "warmup_steps": 3000 if second else 5000},
                "b1": 0.9,
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
