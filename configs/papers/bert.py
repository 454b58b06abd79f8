"""Liu, Liu, Han 2021, "Multi-head or Single-head?" (arXiv 2106.09650): BERT.

Shallow with many heads, or `deep` with one: every head of a layer and its share of the feed-forward sub-layer become a
layer of their own, so that there are as many heads, one to a layer:

    size=base          12 heads, 12 layers     110,106,428 parameters
    size=base,deep      1 head, 144 layers     110,714,684
    size=large         16 heads, 24 layers     336,226,108
    size=large,deep     1 head, 384 layers     338,437,948

In the paper 144 layers converge but depend on the initialisation, and 384 do not converge without Admin
(`initialization=admin`, which adds a vector for every sub-layer). The model is the full pre-training graph, with pooler
and both outputs. The recipe is BERT's own (Devlin et al. 2019): batches of 256, 900,000 steps of 128 tokens, then
100,000 of 512 (`stage=2`) on the same straight line of learning rates. The paper's scores are not at hand.

Cost: BERT-base took 4 days on 4 Cloud TPUs (16 chips) in 2018; see docs/deep.md for a step of the deep model beside it.

    headjax inspect --config configs/papers/bert.py:size=base,deep
    headjax prepare bert_pretraining --length 128 --tokenizer vocab.txt --out D
    headjax prepare bert_pretraining --length 512 --set max_predictions=80 --tokenizer vocab.txt --out E
    headjax train --config configs/papers/bert.py:size=base,deep,initialization=admin,data=D --workdir runs/deep
    headjax train --config configs/papers/bert.py:stage=2,start=runs/deep/model,data=E --workdir runs/deep512
    headjax train --config configs/papers/bert.py:deep,smoke --workdir runs/smoke
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

SIZES = {"base": (768, 12, 12), "large": (1024, 16, 24)}
"""Width, heads and layers."""

FINAL = {1: 0.1, 2: 0.0}
"""Share of the highest learning rate at the end, by stage."""


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: size, deep, initialization (a kind, such as admin), stage (1, 2), start, data, seed, smoke."""
    knobs = arguments(arg, size="base", deep=False, initialization="", stage=1, start="")
    width, heads, layers = choose("size", knobs.size, SIZES)
    final = choose("stage", knobs.stage, FINAL)
    recipe = recipe_of("bert_pretraining", "Devlin 2019", knobs.stage)
    model = bert(width, layers, multi_head(heads), 4 * width, PRETRAINING)
    return experiment(
        knobs,
        **started(model, knobs.start),
        deep=int(knobs.deep and not knobs.start),
        **run_of("bert_pretraining", recipe),
        optimizer=bert_adam(recipe, final=final),
        # Twelve or sixteen times the layers keep as many times the activations; a model to start from may be deep too.
        compute={"dtype": "bfloat16", "remat": "full" if knobs.deep or knobs.start else "none"},
    )
