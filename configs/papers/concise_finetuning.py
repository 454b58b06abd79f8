"""Bhojanapalli et al. 2020, "Low-Rank Bottleneck in Multi-head Attention Models" (arXiv 2002.07028): SQuAD and MNLI.

What `concise_bert.py` has pre-trained is fine-tuned on SQuAD v1.1 (exact match, F1) or MNLI (accuracy). The settings of
the paper's fine-tuning are not at hand; these are BERT's (Devlin et al. 2019, sections 4.1, 4.2): 3 epochs in batches
of 32, on SQuAD at 5e-5 with windows of 384 tokens, on MNLI at the best of 2e-5, 3e-5, 4e-5 and 5e-5 on the development
set (`peak`). BERT-large has 84.1 and 90.9 on SQuAD's development set and 86.7 on MNLI's test set there.

Cost: at most an hour on one Cloud TPU (Devlin et al.).

    headjax prepare squad --tokenizer vocab.txt --out D
    headjax prepare mnli --tokenizer vocab.txt --out E
    headjax train --config configs/papers/concise_finetuning.py:start=runs/stage2/model,data=D --workdir runs/squad
    headjax train --config configs/papers/concise_finetuning.py:task=mnli,start=runs/stage2/model,data=E --workdir M
    headjax train --config configs/papers/concise_finetuning.py:task=squad,smoke --workdir runs/smoke
"""

from common import arguments, bert, bert_adam, choose, experiment, glue_output, multi_head, recipe_of, run_of, started
from ml_collections import ConfigDict

OUTPUTS = {"squad": {"kind": "span"}, "mnli": glue_output("mnli")}


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: task (squad, mnli), start (a model directory), peak (0 is the task's), data, seed, smoke."""
    knobs = arguments(arg, task="squad", start="", peak=0.0)
    output = choose("task", knobs.task, OUTPUTS)
    recipe = recipe_of(knobs.task, "Devlin 2019")
    rates = (knobs.peak,) if knobs.peak else recipe.learning_rates
    model = bert(1024, 24, multi_head(16), 4096, output)
    return experiment(
        knobs,
        **started(model, knobs.start, output),
        **run_of(knobs.task, recipe),
        optimizer=bert_adam(recipe._replace(learning_rates=rates, warmup_steps=recipe.steps // 10)),
        compute={"dtype": "bfloat16"},
        every=1000,
    )
