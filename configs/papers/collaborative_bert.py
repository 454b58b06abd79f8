"""Cordonnier, Loukas, Jaggi 2020, "Multi-Head Attention: Collaborate Instead of Concatenate" (arXiv 2006.16362): GLUE.

A pre-trained model is fine-tuned, its attention made collaborative with `shared_dim` key and query dimensions for all
heads together, and fine-tuned again with the same settings. 0 is the original multi-head model. Parameters (of BERT
with a 2-class output, of the others' encoders) and the mean GLUE score on the development sets:

    model=bert         0: 108,311,810 (83.0)   768: 108,514,562 (83.2)   384: 101,381,378 (82.5)
                       256: 99,003,650 (81.7)  128: 96,625,922 (77.6)
    model=distilbert   0: 66,362,880 (80.0)    384: 62,897,664 (79.1)
    model=albert       0: 11,683,584 (85.3)    512: 11,304,192 (83.1)    384: 11,106,048 (77.9)

Batches of 32, at most 128 tokens, learning rate 2e-5, 3 epochs (10 for SST-2 and RTE).

    headjax inspect --config configs/papers/collaborative_bert.py:shared_dim=256
    headjax prepare mnli --tokenizer vocab.txt --out D
    headjax train --config configs/papers/collaborative_bert.py:task=mnli,start=runs/mnli_256,data=D --workdir runs/next
"""

from ml_collections import ConfigDict

from headjax.configuration import parse_arguments
from headjax.errors import ConfigError

EXAMPLES = {
    "cola": 8551,
    "sst2": 67_349,
    "mrpc": 3668,
    "stsb": 5749,
    "qqp": 363_846,
    "mnli": 392_702,
    "qnli": 104_743,
    "rte": 2490,
}
"""Training examples of each GLUE task."""

BATCH_SIZE = 32


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: model (bert, distilbert, albert), shared_dim (0 is multi-head), task, start, data, seed."""
    knobs = parse_arguments(arg, model="bert", shared_dim=0, task="mrpc", start="", data="", seed=0)
    if knobs.task not in EXAMPLES:
        raise ConfigError(f"task: expected one of {', '.join(EXAMPLES)}, got {knobs.task!r}")
    epochs = 10 if knobs.task in ("sst2", "rte") else 3
    return ConfigDict(
        {
            "model": model(knobs.model, knobs.shared_dim, knobs.start),
            "data": {"kind": "task", "task": knobs.task, "path": knobs.data, "length": 128},
            "batch_size": BATCH_SIZE,
            "steps": epochs * -(-EXAMPLES[knobs.task] // BATCH_SIZE),
            "optimizer": {
                "kind": "adamw",
                "schedule": {"kind": "linear_decay", "peak": 2e-5},
                "b2": 0.999,
                "weight_decay": 0.0,
            },
            "seed": knobs.seed,
        }
    )


def model(name: str, shared_dim: int, start: str) -> dict:
    """The model directory `start`, or the recipe of that model, collaborative where shared_dim is not 0."""
    if start:
        return {"kind": "directory", "path": start}
    attention = {"kind": "multi_head", "num_heads": 12, "head_dim": 64}
    if shared_dim:
        attention = {
            "kind": "collaborative",
            "num_heads": 12,
            "shared_dim": shared_dim,
            "value_dim": 64,
            "head_dim": 64,
            "content_bias": True,
        }
    feed_forward = {"kind": "dense", "hidden": 3072, "activation": "gelu"}
    if name == "bert":
        own = {"vocab_size": 28_996, "task": {"kind": "classification", "classes": 2}}
    elif name == "distilbert":
        own = {"vocab_size": 30_522}
    elif name == "albert":
        own = {"vocab_size": 30_000}
        feed_forward["activation"] = "gelu_tanh"
    else:
        raise ConfigError(f"model: expected bert, distilbert or albert, got {name!r}")
    return {"kind": name, "attention": attention, "feed_forward": feed_forward, **own}
