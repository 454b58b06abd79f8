"""all-MiniLM-L6-v2 fine-tuned on a task of GLUE, from local files.

    headjax import all-MiniLM-L6-v2 models/minilm
    export HEADJAX_DATA=...   # the folder that holds glue/SST-2 and the like
    headjax train --config configs/small/minilm.py:start=models/minilm,task=sst2 --workdir runs/minilm-sst2
    headjax evaluate runs/minilm-sst2/model --task sst2

Measured on 2 CPU cores with task=sst2,steps=200 (6,400 phrases): accuracy 0.823 on the 872 sentences of GLUE's
development set. With peak=1e-4 and task=stsb,steps=270 (8,640 pairs): Spearman's correlation 0.820, Pearson's 0.809 on
the 1,500 development pairs. With peak=1e-4, too: task=cola,steps=540 (17,280 sentences): Matthews' correlation 0.264 on
the 1,043 development sentences; task=rte,steps=240 (7,680 pairs): accuracy 0.563 on 277 pairs; task=mnli,steps=250
(8,000 pairs of the matched development set, the only ones with gold labels at hand): accuracy 0.600 on 1,909 others.
"""

from ml_collections import ConfigDict

from headjax.core.errors import ConfigError
from headjax.core.fields import parse_arguments, unknown_name
from headjax.data.registry import GLUE


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: start (a model directory), task (a name of GLUE), steps, batch_size, peak (learning rate), seed."""
    knobs = parse_arguments(arg, start="models/minilm", task="sst2", steps=2000, batch_size=32, peak=5e-5, seed=0)
    if knobs.task not in GLUE:
        raise ConfigError(f"task: {unknown_name('GLUE task', knobs.task, GLUE)}")
    classes = len(GLUE[knobs.task].form.label_names)
    output = {"kind": "classification", "classes": classes} if classes else {"kind": "regression"}
    return ConfigDict(
        {
            "start": knobs.start,
            "task": output,
            "data": {"task": knobs.task, "length": 128, "buckets": (16, 32, 64)},
            "batch_size": knobs.batch_size,
            "steps": knobs.steps,
            "optimizer": {
                "kind": "adamw",
                "schedule": {"kind": "linear_decay", "peak": knobs.peak, "warmup_steps": knobs.steps // 10},
                "b2": 0.999,
                "weight_decay": 0.01,
            },
            "checkpoint_every": 500,
            "seed": knobs.seed,
        }
    )
