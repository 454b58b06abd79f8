"""all-MiniLM-L6-v2 fine-tuned on SQuADShifts (new Wikipedia articles), tested on SQuAD v1.1's development set.

    headjax import all-MiniLM-L6-v2 models/minilm
    export HEADJAX_DATA=...   # the folder that holds squad/
    headjax train --config configs/small/minilm_squad.py:start=models/minilm --workdir runs/minilm-squad
    headjax evaluate runs/minilm-squad/model --task squad

Training ends with the first 1,000 questions, `headjax evaluate` asks all 10,570. Measured on CPU with the arguments as
they are (300 steps of 8 windows): exact match 40.6, F1 54.8 on those 1,000.
"""

import os

from ml_collections import ConfigDict

from headjax.core.fields import parse_arguments


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: start (a model directory), steps, batch_size, peak (learning rate), test (questions; 0: all), seed."""
    knobs = parse_arguments(arg, start="models/minilm", steps=300, batch_size=8, peak=2e-4, test=1000, seed=0)
    folder = f"{os.environ.get('HEADJAX_DATA', 'data')}/squad"
    return ConfigDict(
        {
            "start": knobs.start,
            "task": {"kind": "span"},
            "data": {
                "task": f"questions:{folder}/squadshifts_new_wiki_v1.0.json",
                "validation": f"{folder}/dev-v1.1.from-explorer.json",
                "limit": knobs.test,
                "length": 256,
                "form": {"stride": 64},
                "buckets": (128, 176, 224),
            },
            "batch_size": knobs.batch_size,
            "steps": knobs.steps,
            "optimizer": {
                "kind": "adamw",
                "schedule": {"kind": "linear_decay", "peak": knobs.peak, "warmup_steps": knobs.steps // 10},
                "b2": 0.999,
                "weight_decay": 0.01,
            },
            "seed": knobs.seed,
        }
    )
