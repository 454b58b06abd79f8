"""A decoder language model on the source code of Python's standard library: the model that headjax carries.

    headjax train --config configs/small/code.py --workdir runs/code
    python -m results.experiments.ship runs/code

Whole files are held out, chosen by a hash of their names, so that they are the same ones in every Python version. The
model card beside the shipped weights has what this run reached.
`results/experiments/development.py` trains it further in another shape.
"""

from ml_collections import ConfigDict

from headjax.core.fields import parse_arguments


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: start (a model directory), steps, batch_size, length, peak, width, num_layers, num_heads, seed."""
    knobs = parse_arguments(
        arg, start="", steps=8000, batch_size=8, length=256, peak=3e-3, width=128, num_layers=4, num_heads=8, seed=0
    )
    fresh = {
        "kind": "decoder",
        "vocab_size": 2048,
        "max_length": knobs.length,
        "width": knobs.width,
        "num_layers": knobs.num_layers,
        "attention": {
            "kind": "multi_head",
            "num_heads": knobs.num_heads,
            "head_dim": knobs.width // knobs.num_heads,
        },
        "hidden": 4 * knobs.width,
    }
    return ConfigDict(
        {
            **({"start": knobs.start} if knobs.start else {"model": fresh}),
            "data": {"task": "python_code", "length": knobs.length, "vocab_size": 2048},
            "batch_size": knobs.batch_size,
            "steps": knobs.steps,
            "optimizer": {
                "kind": "adamw",
                "schedule": {"kind": "cosine", "peak": knobs.peak, "warmup_steps": min(200, knobs.steps // 4)},
                "weight_decay": 0.1,
            },
            "seed": knobs.seed,
            "evaluate_every": 1000,
            "checkpoint_every": 500,
        }
    )
