"""Liu, Liu, Han 2021, "Multi-head or Single-head?" (arXiv 2106.09650): translation, WMT14 English-German.

Transformer-base with 8 heads in 6 + 6 layers, or `deep` with one head in each of 48 + 48: every head and its share of
the feed-forward sub-layer become a layer of their own, cross-attention likewise (144 heads either way).

                60,915,712 parameters with 32,768 tokens
    deep        61,238,272

48 + 48 post-norm layers do not converge without Admin (`initialization=admin`, which adds a vector a sub-layer).
The recipe is that of Admin's authors for WMT14 (RAdam, learning rate 0.001 after 8000 steps, label smoothing 0.1,
32,768 tokens a step, 100 epochs of about 4000 steps; they average checkpoints at the end, which is not done here). BLEU
there at 6 + 6 layers: 27.80 post-norm, 27.90 with Admin; at 18 + 18: no convergence, and 29.03.

Cost: 4 GPUs in the recipe; the paper's time is not at hand.

    headjax inspect --config configs/papers/transformer_base.py:deep
    headjax prepare wmt14_ende --out D
    headjax train --config configs/papers/transformer_base.py:deep,initialization=admin,data=D --workdir runs/deep
    headjax train --config configs/papers/transformer_base.py:deep,initialization=admin,smoke --workdir runs/smoke
"""

from common import adam, arguments, experiment, recipe_of, run_of, translation
from ml_collections import ConfigDict


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: deep, initialization (a kind, such as admin), vocab_size, data, seed, smoke."""
    knobs = arguments(arg, deep=False, initialization="", vocab_size=32_768, seed=1111)
    recipe = recipe_of("wmt14_ende", "Liu 2021")
    model = translation(512, 8, 2048, knobs.vocab_size, attention_dropout=0.1, feed_forward_dropout=0.1)
    return experiment(
        knobs,
        model=model,
        deep=int(knobs.deep),
        **run_of("wmt14_ende", recipe),
        optimizer=adam(recipe, schedule="inverse_square_root", kind="radam", b1=0.9, b2=0.98, clip_norm=0.0),
        compute={"dtype": "bfloat16", "remat": "full" if knobs.deep else "none"},
    )
