"""IWSLT14 German-English, 6 + 6 layers: of two papers.

Michel, Levy, Neubig 2019, "Are Sixteen Heads Really Better than One?" (arXiv 1905.10650): 8 heads, pre-norm, pruned
during and after training. 20% of the heads go without a noticeable loss (figure 6); BLEU with all of them after 1, 2,
3, 5, 10, 20, 30, 40 epochs: 3.0, 6.2, 18.1, 26.9, 30.6, 34.5, 34.7, 34.9 (figure 5). Adam, learning rate 5e-4 after
4000 steps, dropout 0.3, weight decay 1e-4, label smoothing 0.1, 4000 tokens a step, 50,000 steps.

Liu et al. 2020, "Understanding the Difficulty of Training Transformers" (arXiv 2004.08249; the initialisation of
"Multi-head or Single-head?"): the same small model with `residual=post`, BLEU 35.64; `residual=pre` 35.50;
`residual=post,initialization=admin` 35.67.

Both took fairseq's `transformer_iwslt_de_en`: width 512, feed-forward 1024, positions of its own. The vocabulary here
is one of 10,000 tokens for both languages, the papers' are not at hand. Cost: hours on one GPU.

    headjax prepare iwslt14_deen --source FOLDER --out D
    headjax train --config configs/papers/iwslt14.py:data=D --workdir runs/iwslt
    headjax train --config configs/papers/iwslt14.py:residual=post,initialization=admin,data=D --workdir runs/admin
    headjax train --config configs/papers/iwslt14.py:smoke --workdir runs/smoke
"""

from common import arguments, choose, experiment, recipe_of, run_of, translation, translation_adam
from ml_collections import ConfigDict

RESIDUALS = {"pre": "pre_norm", "post": "post_norm"}


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: residual (pre, post), initialization (a kind, such as admin), heads, vocab_size, data, seed, smoke."""
    knobs = arguments(arg, residual="pre", initialization="", heads=8, vocab_size=10_000)
    recipe = recipe_of("iwslt14_deen", "Michel 2019")
    residual = choose("residual", knobs.residual, RESIDUALS)
    return experiment(
        knobs,
        model=translation(512, knobs.heads, 1024, knobs.vocab_size, residual=residual) | {"dropout": 0.3},
        **run_of("iwslt14_deen", recipe),
        optimizer=translation_adam(recipe, weight_decay=1e-4),
        every=1000,
    )
