"""Cordonnier, Loukas, Jaggi 2020, "Multi-Head Attention: Collaborate Instead of Concatenate" (arXiv 2006.16362): NMT.

Transformer-base trained from scratch on WMT16 English-German (the WMT14 test set), with `key_dim` key and query
dimensions in all heads together, either cut among the heads or shared by them (`collaborative`). Parameters with a
vocabulary of 32,768, and BLEU:

    key_dim          512                  256                  128                  64
    concatenate      60,915,712  27.40    56,187,904  27.10    53,824,000  26.89    52,642,048  26.77
    collaborative    60,989,440  27.58    56,224,768  27.41    53,842,432  27.40    52,651,264  27.31

`size=big` is the first version's experiment: Transformer-big, pre-norm, WMT17 in batches of 2^17 tokens for 9 epochs
(about 1000 steps each), BLEU by key_dim

    key_dim          1024    256     128     64      32
    concatenate      27.8    27.7    27.4    26.6    25.5
    collaborative            27.8    27.8    27.3    27.1

Heads that were cut keep the scale 1 / sqrt(64) in the paper's code, whatever their size; `scale=cut` takes 1 / sqrt of
their own size instead, the fair comparison. 28,672 tokens a step on 4 GPUs; the number of steps is not stated for base.
Cost of big: 6 to 12 hours on one V100.

    headjax inspect --config configs/papers/collaborative_nmt.py:key_dim=128,collaborative
    headjax prepare wmt16_ende --out D
    headjax train --config configs/papers/collaborative_nmt.py:key_dim=128,collaborative,data=D --workdir runs/shared
    headjax train --config configs/papers/collaborative_nmt.py:key_dim=128,collaborative,smoke --workdir runs/smoke
"""

from common import arguments, choose, cut_or_shared, experiment, recipe_of, run_of, translation, translation_adam
from ml_collections import ConfigDict

from headjax.data.spec import Recipe

SIZES = {"base": (512, 8, 2048, "post_norm"), "big": (1024, 16, 4096, "pre_norm")}
"""Width, heads, feed-forward width and residual connections."""

BASE = recipe_of("wmt16_ende", "Cordonnier 2020")._replace(steps=100_000)
BIG = Recipe("of WMT17", 512, (1.976e-3,), warmup_steps=1000, steps=9000)
RUNS = {"base": (BASE, translation_adam(BASE)), "big": (BIG, translation_adam(BIG, epsilon=1e-9))}


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: size, key_dim (0 is the width), collaborative, scale (paper, cut), vocab_size, data, seed, smoke."""
    knobs = arguments(arg, size="base", key_dim=0, collaborative=False, scale="paper", vocab_size=32_768)
    width, heads, hidden, residual = choose("size", knobs.size, SIZES)
    key_dim = knobs.key_dim or width
    scale = choose("scale", knobs.scale, {"paper": 64**-0.5, "cut": (key_dim / heads) ** -0.5})
    attention = cut_or_shared(
        heads, key_dim, knobs.collaborative, scale=scale, mixing_init={"kind": "xavier"}, projection_bias=True
    )
    recipe, optimizer = RUNS[knobs.size]
    own = {"attention": attention, "residual": residual}
    return experiment(
        knobs,
        model=translation(width, heads, hidden, knobs.vocab_size, **own),
        **run_of("wmt16_ende", recipe),
        optimizer=optimizer,
        compute={"dtype": "bfloat16"},
    )
