"""Michel, Levy, Neubig 2019, "Are Sixteen Heads Really Better than One?" (arXiv 1905.10650): WMT14 English-French.

Transformer-big, 6 layers of 16 heads in each of encoder, decoder and cross-attention (288 heads), BLEU 36.05 on
newstest2013 with all of them. About 20% can be removed without a noticeable loss; most of the cross-attention's cannot:
the last layer alone loses 13.56 BLEU with one head left. A head is 262,336 parameters.

The paper prunes the trained model of Ott et al. (2018) and trains none of this size itself; the optimizer here is that
of transformer-base, and the size of the vocabulary is not stated. Cost: Ott et al. took 8.5 hours on 128 V100s.

    headjax inspect --config configs/papers/sixteen_heads_wmt.py
    headjax prepare wmt14_enfr --out D
    headjax train --config configs/papers/sixteen_heads_wmt.py:data=D --workdir runs/enfr
    headjax score runs/enfr/model --task newstest2013_enfr
    headjax train --config configs/papers/sixteen_heads_wmt.py:smoke --workdir runs/smoke
"""

from common import arguments, experiment, run_of, translation, translation_adam
from ml_collections import ConfigDict

from headjax.data.spec import Recipe

RECIPE = Recipe("of no paper", 112, (7e-4,), warmup_steps=4000, steps=100_000)


def get_config(arg: str = "") -> ConfigDict:
    """Arguments: vocab_size, data, seed, smoke."""
    knobs = arguments(arg, vocab_size=44_512)
    return experiment(
        knobs,
        model=translation(1024, 16, 4096, knobs.vocab_size),
        **run_of("wmt14_enfr", RECIPE),
        optimizer=translation_adam(RECIPE),
        compute={"dtype": "bfloat16"},
    )
