"""Michel, Levy, Neubig 2019, "Are Sixteen Heads Really Better than One?" (arXiv 1905.10650): BERT-base on MNLI.

BERT-base-uncased is fine-tuned, its 144 heads are scored by importance on the training set, and removed 10% at a time
without further training: 40% go without a noticeable loss. Accuracy of an independent reproduction: .8368 with all
heads, .8303 without 57, .8151 without 72, .3182 (the majority class) without all 144. A head is 196,800 parameters.

    headjax prepare mnli --tokenizer vocab.txt --out D
    headjax train --config configs/papers/sixteen_heads_bert.py:start=models/bert-base,data=D --workdir runs/mnli
    headjax score runs/mnli/model --task mnli
    headjax prune runs/mnli/model runs/pruned --task mnli --remove 40%
"""

from ml_collections import ConfigDict

from headjax.configuration import parse_arguments

BATCH_SIZE, EXAMPLES, EPOCHS = 32, 392_702, 3


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: start (a model directory), data, seed."""
    knobs = parse_arguments(arg, start="", data="", seed=0)
    model = {
        "kind": "bert",
        "attention": {"kind": "multi_head", "num_heads": 12, "head_dim": 64},
        "feed_forward": {"kind": "dense", "hidden": 3072, "activation": "gelu"},
        "task": {"kind": "classification", "classes": 3},
    }
    steps = EPOCHS * -(-EXAMPLES // BATCH_SIZE)
    return ConfigDict(
        {
            "model": {"kind": "directory", "path": knobs.start} if knobs.start else model,
            "data": {"kind": "task", "task": "mnli", "path": knobs.data, "length": 128},
            "batch_size": BATCH_SIZE,
            "steps": steps,
            "optimizer": {
                "kind": "adamw",
                "schedule": {"kind": "linear_decay", "peak": 2e-5, "warmup_steps": steps // 10},
                "b2": 0.999,
                "epsilon": 1e-6,
            },
            "seed": knobs.seed,
        }
    )
