"""Bhojanapalli et al. 2020, "Low-Rank Bottleneck in Multi-head Attention Models" (arXiv 2002.07028): BERT.

Tables 1 to 3: 24 layers, pre-trained on Wikipedia and BooksCorpus in two stages, then fine-tuned
(`concise_finetuning.py`). Table 2 has a feed-forward width of 4096 at every model width (that of BERT-large), table 3
has 4 times the width; the text does not say so, the parameter counts do. Parameters, in millions as printed:

    table 1    width=1024,head_dim=W/heads, heads=8, 16, 32                                  336
    table 2A   width=512,head_dim=128,feed_forward=4096, heads=8, 12, 16, 32                 168, 193, 218, 319
    table 2B   width=512,heads=8,feed_forward=4096, head_dim=32, 64, 128, 256                130, 142, 168, 218
    table 3    width=768,head_dim=128,feed_forward=3072, heads=8, 12, 16, 20                 214, 252, 290, 327

Batches of 1024, Adam at 1e-4: 450,000 steps of 128 tokens after a warm-up of 5000, then, with a new warm-up of 3000,
50,000 of 512 (`stage=2`) from what the first stage ended with. The optimizer's moments start anew.
Cost in the paper: 2 to 3 days, stage 1 on 16 TPUv3 chips (v3-32), stage 2 on 64 (v3-128).

    headjax inspect --config configs/papers/concise_bert.py:width=512,heads=32,head_dim=128,feed_forward=4096
    headjax prepare bert_pretraining --length 128 --tokenizer vocab.txt --out D
    headjax prepare bert_pretraining --length 512 --set max_predictions=80 --tokenizer vocab.txt --out E
    headjax train --config configs/papers/concise_bert.py:width=512,heads=32,head_dim=128,data=D --workdir runs/stage1
    headjax train --config configs/papers/concise_bert.py:stage=2,start=runs/stage1/model,data=E --workdir runs/stage2
    headjax train --config configs/papers/concise_bert.py:smoke --workdir runs/smoke1
    headjax train --config configs/papers/concise_bert.py:stage=2,start=runs/smoke1/model,smoke --workdir runs/smoke2
"""

from common import (
    PRETRAINING,
    arguments,
    bert,
    bert_adam,
    choose,
    experiment,
    multi_head,
    recipe_of,
    run_of,
    started,
)
from ml_collections import ConfigDict


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: width, heads, head_dim (0 is width / heads), feed_forward, layers, stage, start, data, seed, smoke."""
    knobs = arguments(arg, width=1024, heads=16, head_dim=0, feed_forward=4096, layers=24, stage=1, start="")
    stage = choose("stage", knobs.stage, {1: 1, 2: 2})
    recipe = recipe_of("bert_pretraining", "Bhojanapalli 2020", stage)
    attention = multi_head(knobs.heads, knobs.head_dim or knobs.width // knobs.heads)
    model = bert(knobs.width, knobs.layers, attention, knobs.feed_forward, PRETRAINING)
    return experiment(
        knobs,
        **started(model, knobs.start),
        **run_of("bert_pretraining", recipe),
        optimizer=bert_adam(recipe),
        compute={"dtype": "bfloat16", "remat": "dots"},
    )
