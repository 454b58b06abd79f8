"""Cordonnier, Loukas, Jaggi 2020, "Multi-Head Attention: Collaborate Instead of Concatenate" (arXiv 2006.16362): GLUE.

A pre-trained model is fine-tuned, its attention made collaborative with `shared_dim` key and query dimensions for all
heads together, and fine-tuned again with the same settings (`again`, which keeps the output that `start` has). 0 is the
original multi-head model. Parameters (of BERT with a 2-class output, of the others' encoders: `bare`) and the mean GLUE
score on the development sets, medians of 3 runs:

    model=bert         0: 108,311,810 (83.0)   768: 108,514,562 (83.2)   384: 101,381,378 (82.5)
                       256: 99,003,650 (81.7)  128: 96,625,922 (77.6)
    model=distilbert   0: 66,362,880 (80.0)    384: 62,897,664 (79.1)
    model=albert       0: 11,683,584 (85.3)    512: 11,304,192 (83.1)    384: 11,106,048 (77.9)

Batches of 32, at most 128 tokens, learning rate 2e-5, 3 epochs (10 for SST-2 and RTE). Cost: minutes (RTE) to hours
(MNLI, QQP) on one GPU for each of the two fine-tunings; the conversion took the authors 3 minutes.

    headjax inspect --config configs/papers/collaborative_bert.py:shared_dim=256
    headjax prepare mnli --tokenizer vocab.txt --out D
    headjax train --config configs/papers/collaborative_bert.py:task=mnli,start=models/bert,data=D --workdir runs/mnli
    headjax convert runs/mnli/model runs/mnli_256 --to collaborative:shared_dim=256
    headjax train --config configs/papers/collaborative_bert.py:task=mnli,again,start=runs/mnli_256,data=D --workdir B
    headjax train --config configs/papers/collaborative_bert.py:shared_dim=256,smoke --workdir runs/smoke
"""

from common import (
    adam,
    arguments,
    choose,
    cut_or_shared,
    experiment,
    glue_output,
    multi_head,
    recipe_of,
    run_of,
    started,
)
from ml_collections import ConfigDict

MODELS = {
    "bert": {"vocab_size": 28_996},
    "distilbert": {"vocab_size": 30_522, "num_layers": 6, "segments": 0, "pooler": None},
    "albert": {
        "vocab_size": 30_000,
        "embedding_size": 128,
        "shared_layers": True,
        "activation": "gelu_tanh",
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
}
"""What differs from BERT-base."""


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: model, shared_dim (0 is multi-head), task, start (a directory), again, bare, data, seed, smoke."""
    knobs = arguments(arg, model="bert", shared_dim=0, task="mrpc", start="", again=False, bare=False)
    attention = multi_head(12)
    if knobs.shared_dim:
        attention = cut_or_shared(12, knobs.shared_dim, True, scale=64**-0.5, content_bias=True)
    sizes = {"width": 768, "num_layers": 12, "hidden": 3072}
    model = {"kind": "encoder", "attention": attention} | sizes | choose("model", knobs.model, MODELS)
    output = glue_output(knobs.task)
    if not knobs.bare:
        model |= {"task": output} | ({"pooler": "relu"} if knobs.model == "distilbert" else {})
    recipe = recipe_of(knobs.task, "Cordonnier 2020")
    return experiment(
        knobs,
        **started(model, knobs.start, None if knobs.again else output),
        **run_of(knobs.task, recipe),
        optimizer=adam(recipe, schedule="linear_decay", b2=0.999, weight_decay=0.0),
        every=1000,
    )
