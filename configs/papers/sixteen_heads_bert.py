"""Michel, Levy, Neubig 2019, "Are Sixteen Heads Really Better than One?" (arXiv 1905.10650): BERT-base on MNLI.

BERT-base-uncased is fine-tuned (learning rate 2e-5, 3 epochs, batches of 32, 128 tokens), its 144 heads are scored by
importance on the training set, and removed 10% at a time without further training. Without a noticeable loss go 40% on
MNLI (figure 3), 60% on SST-2, 50% on CoLA and MRPC (figure 6; `task`). Accuracy on MNLI of an independent reproduction:
.8368 with all heads, .8303 without 57, .8151 without 72, .3182 (the majority class) without all 144. A head is 196,800
parameters.

Cost: hours of fine-tuning on one GPU; the paper has 1080Tis.

    headjax import bert-base-uncased models/bert-base
    headjax prepare mnli --tokenizer vocab.txt --out D
    headjax train --config configs/papers/sixteen_heads_bert.py:start=models/bert-base,data=D --workdir runs/mnli
    headjax score runs/mnli/model --task mnli
    headjax prune runs/mnli/model runs/pruned --task mnli --remove 40%
    headjax train --config configs/papers/sixteen_heads_bert.py:smoke --workdir runs/smoke
"""

from common import arguments, bert, bert_adam, experiment, glue_output, multi_head, recipe_of, run_of, started
from ml_collections import ConfigDict


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: task (a name of GLUE), start (a model directory), data, seed, smoke."""
    knobs = arguments(arg, task="mnli", start="")
    output = glue_output(knobs.task)
    model = bert(768, 12, multi_head(12), 3072, output)
    recipe = recipe_of("mnli", "Michel 2019", examples=knobs.task)
    return experiment(
        knobs,
        **started(model, knobs.start, output),
        **run_of(knobs.task, recipe),
        optimizer=bert_adam(recipe._replace(warmup_steps=recipe.steps // 10)),
        every=2000,
    )
