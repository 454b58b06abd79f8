"""Claims of the papers and of headjax beside measurements, each with a verdict: the table of RESULTS.md.

    python -m docs.tables       # writes it, from the raw results in docs/measurements/

Every number and every verdict is computed from the raw results, by `docs.measures`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from docs import composition, design, measures, patterns, stacks
from docs.measures import Found, Runs


class Claim(NamedTuple):
    """A claim and its measurement.

    Attributes:
        source: Who says it.
        says: Claim.
        setting: What was measured here.
        measure: From nothing to the measurement; reads raw results.
        page: Page with the command and the whole table.
    """

    source: str
    says: str
    setting: str
    measure: Callable[[], Found]
    page: str


MINILM = "all-MiniLM-L6-v2, 72 heads"
SST2 = f"{MINILM}, fine-tuned on SST-2; all 872 sentences"
SQUAD = f"{MINILM}, fine-tuned on SQuADShifts; F1 on all 10,570 questions of SQuAD's development set"
STSB = f"{MINILM}, as published, STS-B; all 1,500 pairs"
TRANSLATION = "translation, Multi30k, 3 stacks of 24 heads; 1,014 captions"
HEADS, CONVERSIONS, DEEP = "docs/heads.md", "docs/conversions.md", "docs/deep_training.md"
HEAD_SIZE = "docs/head_size.md"

BYTES = "language model on WikiText-2's bytes, two layers of width 64, 2,000 steps"
KEYS = "translation, Multi30k, 2 layers of width 128, 800 steps from scratch; 1,000 captions"
DEEP_BYTES = "language model on WikiText-2's bytes, width 32, post-norm"


def shape(heads: int, head_dim: int, hidden: int = 256) -> Runs:
    """Return the runs with this many heads of this size, and a feed-forward layer of this width."""
    return Runs("head_shapes", {"heads": str(heads), "head_dim": str(head_dim), "hidden": str(hidden)})


def shared(head_dim: int, shared_dim: int) -> Runs:
    """Return the runs whose heads have queries of this size each, or share queries of `shared_dim`."""
    return Runs("shared_keys", {"head_dim": str(head_dim), "shared_dim": str(shared_dim)})


def keys(key_dim: int, *, shared: bool = False) -> Runs:
    """Return the translation models whose eight heads have queries of this size together, or share them."""
    settings = {"head_dim": "0", "shared_dim": str(key_dim)} if shared else {"head_dim": str(key_dim // 8)}
    return Runs("keys_translation", settings)


def deep(num_layers: int, variant: str, peak: str) -> Runs:
    """Return the runs of layers of eight heads, rebuilt as eight times as many of one head, at a peak rate."""
    return Runs("deep_layers", {"num_layers": str(num_layers), "variant": variant, "peak": peak})


CLAIMS = (
    Claim(
        "Michel et al. 2019",
        "Many heads can go at test time without a noticeable loss",
        f"{SST2}; 25 % removed by importance, nothing repaired; at most 1 point",
        partial(measures.loss, "removals_sst2_phrases", "25%", "none", 0.01, order="importance"),
        HEADS,
    ),
    Claim(
        "K-prune, 2023; Kwon et al. 2022",
        "Solving kept maps anew, without training, brings the model back",
        "three grids on MiniLM; agreement with the whole model, output projections alone",
        partial(measures.agreement, ["removals_sst2", "removals_sst2_phrases", "removals_stsb"], "reconstruct"),
        HEADS,
    ),
    *(
        Claim(
            "headjax's goal",
            f"{share} of the heads cost at most {100 * most:.1f} points, without labels or training",
            f"{SST2}; order `reconstruction`, W_O and feed-forward solved anew, calibrated on sentences",
            partial(measures.loss, "removals_sst2", share, "feed_forward", most),
            HEADS,
        )
        for share, most in (("50%", 0.003), ("60%", 0.005), ("75%", 0.01))
    ),
    *(
        Claim(
            "headjax's goal",
            f"{share} of the heads cost at most {most} of Spearman's correlation, without labels or training",
            f"{STSB}; order `reconstruction`, W_O and feed-forward solved anew",
            partial(measures.loss, "removals_stsb", share, "feed_forward", most, points=1),
            HEADS,
        )
        for share, most in (("60%", 0.003), ("75%", 0.012), ("90%", 0.03))
    ),
    *(
        Claim(
            "headjax's goal",
            f"{saved:.0%} of the cache saved costs at most {most} times the perplexity, without training",
            f"{shape} shape of 5.8 M parameters, WikiText-2's validation split; latent, calibrated",
            partial(measures.cache, f"conversions_{shape}", saved, most),
            CONVERSIONS,
        )
        for shape in ("llama", "qwen3")
        for saved, most in ((0.5, 1.05), (0.75, 1.25))
    ),
    *(
        Claim(
            "headjax's goal",
            "headjax's latent is below every other conversion at every size, without training",
            f"{shape} shape; plain and activation-scaled decompositions, pooled and aligned groups where they apply",
            partial(measures.cache_against_others, f"conversions_{shape}"),
            CONVERSIONS,
        )
        for shape in ("llama", "qwen3")
    ),
    *(
        Claim(
            "headjax's goal",
            "50% of a decoder's heads cost at most 1.05 times the perplexity, without training",
            f"{shape} shape; order `reconstruction`, W_O and feed-forward solved anew; 128 contexts, one draw",
            partial(measures.removal, f"removals_decoder_{shape}", "50%", 1.05),
            HEADS,
        )
        for shape in ("llama", "qwen3")
    ),
    *(
        Claim(
            "headjax's goal",
            "Order `reconstruction` with repair is below every other row at 10, 20, 30 and 50 % of the heads",
            f"{shape} shape; against `importance` and against no repair",
            partial(measures.removal_against_others, f"removals_decoder_{shape}"),
            HEADS,
        )
        for shape in ("llama", "qwen3")
    ),
    Claim(
        "Michel et al. 2019",
        "Importance, a gradient, finds the heads that a model needs",
        "induction circuits by hand, 2 needed heads of 32; AUROC above 0.9 on every model",
        partial(measures.ranks_needed_heads, "importance"),
        HEADS,
    ),
    Claim(
        "Michel et al. 2019",
        "Most heads can be removed alone without a significant change",
        f"{TRANSLATION}; each head alone, paired t-test on losses, p < 0.01",
        partial(stacks.most_can_go, "ablations_translation"),
        HEADS,
    ),
    Claim(
        "Michel et al. 2019",
        "For most layers one head is enough at test time",
        f"{TRANSLATION}; each layer's best head alone, paired t-test on losses, p < 0.01",
        partial(stacks.one_is_enough, "ablations_translation"),
        HEADS,
    ),
    *(
        Claim(
            "Michel et al. 2019",
            "Heads that matter on one data set matter on another",
            f"translation, 72 heads trained on Multi30k, each removed alone; Multi30k against {name}",
            partial(stacks.transfers, "transfer_translation", task),
            HEADS,
        )
        for name, task in (("captions of other pictures", "test_2017_mscoco"), ("news", "newstest2013"))
    ),
    Claim(
        "Michel et al. 2019",
        "Which heads matter is settled early in training, though not at once",
        "translation, 72 heads, Multi30k, 1,000 steps; importance at checkpoints against the finished model's",
        partial(stacks.settles, "training_translation"),
        HEADS,
    ),
    Claim(
        "Michel et al. 2019",
        "Heads can go cheaply late in training rather than early",
        "translation, 72 heads, Multi30k; 40 % removed by the checkpoint's own importance, at step 100 and at 1,000",
        partial(stacks.later_is_cheaper, "training_translation", "40%"),
        HEADS,
    ),
    *(
        Claim(
            "headjax's question",
            f"At {share} % of the parameters, heads removed and then keys shared are better than {than}",
            "translation, Multi30k, 2.2 M parameters; heads by importance, keys calibrated; fine-tuned for 200 steps",
            partial(composition.better, "composition_translation", share, "prune-convert", others),
            HEADS,
        )
        for share in ("93", "89")
        for than, others in (
            ("either alone", ("prune", "convert")),
            ("keys shared and then heads removed", ("convert-prune",)),
        )
    ),
    *(
        Claim(
            "Michel et al. 2019",
            f"Attention of the decoder to the encoder needs its heads more than self-attention of the {other} does",
            f"{TRANSLATION}; 60 % of a stack removed by importance",
            partial(stacks.needed_more, "stacks_translation", "cross", other, "60%"),
            HEADS,
        )
        for other in ("encoder", "decoder")
    ),
    *(
        Claim(
            "Cordonnier et al. 2020",
            f"Queries and keys of a trained model shrink to {share} of their size {how}",
            f"{setting}; collaborative, {size} of 384 dimensions, {variant}; at most 1 point",
            partial(measures.conversion, name, f"collaborative:shared_dim={size}", variant, 0.01),
            CONVERSIONS,
        )
        for setting, name, share, size, variant, how in (
            (SST2, "sharing_sst2", "half", 192, "calibrated", "without retraining"),
            (SST2, "sharing_sst2", "a third", 128, "plain", "without retraining"),
            (SST2, "sharing_sst2", "a third", 128, "calibrated", "without retraining"),
            (SQUAD, "sharing_squad", "half", 192, "plain", "without retraining"),
            (SQUAD, "sharing_squad", "half", 192, "calibrated", "without retraining"),
            (SQUAD, "sharing_squad", "a third", 128, "plain", "without retraining"),
            (SQUAD, "sharing_squad", "a third", 128, "calibrated", "without retraining"),
            (SQUAD, "sharing_squad", "a third", 128, "fine-tuned", "with 60 steps of training"),
        )
    ),
    *(
        Claim(
            "Bhojanapalli et al. 2020",
            "A head as large as the length fits any pattern (theorem 1), one of half of it none to 0.001 nats",
            f"5 random patterns of 16 tokens, logits of standard deviation {patterns.KINDS[kind]:.0f}",
            partial(patterns.fits_from_the_length_on, "patterns_fitted", kind, 1e-3),
            HEAD_SIZE,
        )
        for kind in patterns.KINDS
    ),
    Claim(
        "condition of the next rows",
        "Models are trained until attention matters: without any head, perplexity per word at least doubles",
        f"{BYTES}, 4 heads of 16; 2,000 contexts of 128 bytes",
        partial(stacks.attention_matters, "stacks_bytes", 2.0),
        HEAD_SIZE,
    ),
    Claim(
        "Bhojanapalli et al. 2020",
        "Heads of size width / heads become too small as their number grows",
        f"{BYTES}, texts of 128: 4 heads of 16 against 16 of 4",
        partial(measures.better, shape(4, 16), shape(16, 4)),
        HEAD_SIZE,
    ),
    Claim(
        "Bhojanapalli et al. 2020",
        "Heads of a fixed size get better with their number",
        f"{BYTES}: 16 heads of 32 against 4 of 32",
        partial(measures.better, shape(16, 32), shape(4, 32)),
        HEAD_SIZE,
    ),
    Claim(
        "Bhojanapalli et al. 2020",
        "At equal parameters a fixed head size is better than width / heads",
        f"{BYTES}: 16 heads of 32 against 16 of 4 with a wider feed-forward layer",
        partial(measures.better, shape(16, 32), shape(16, 4, 1152)),
        HEAD_SIZE,
    ),
    Claim(
        "Cordonnier et al. 2020",
        "Shared keys need a quarter of the size of concatenated ones, trained from scratch",
        f"{BYTES}: shared queries and keys of 16 against four heads of 16 each; at most 0.02 nats worse",
        partial(measures.no_worse, shared(16, 16), shape(4, 16), 0.02),
        HEAD_SIZE,
    ),
    Claim(
        "Cordonnier et al. 2020",
        "At equal key size, shared keys are better than concatenated ones",
        f"{BYTES}, trained from scratch: shared queries and keys of 16 against four heads of 4",
        partial(measures.better, shared(16, 16), shared(4, 0)),
        HEAD_SIZE,
    ),
    *(
        Claim(
            "Cordonnier et al. 2020",
            "At equal key size, shared keys are better than concatenated ones",
            f"{KEYS}: shared queries and keys of {size} against eight heads of {size // 8}",
            partial(measures.better, keys(size, shared=True), keys(size)),
            HEAD_SIZE,
        )
        for size in (128, 64, 32, 16)
    ),
    *(
        Claim(
            "Cordonnier et al. 2020",
            f"Shared keys need {share} of the size of concatenated ones, trained from scratch",
            f"{KEYS}: shared queries and keys of {size} against eight heads of 16 each; at most 0.5 BLEU worse",
            partial(measures.no_worse, keys(size, shared=True), keys(128), 0.5),
            HEAD_SIZE,
        )
        for share, size in (("half", 64), ("a quarter", 32))
    ),
    *(
        Claim(
            source,
            says,
            f"language model on WikiText-2's bytes, width 64; {setting}, after equal {equal}; at most 0.02 nats worse",
            partial(design.no_worse, "heads", one, design.BASELINE, 0.02, equal=equal),
            HEAD_SIZE,
        )
        for source, says, setting, one in (
            (
                "Liu et al. 2021",
                "Deep single-head models are as good as shallow multi-head ones",
                "pre-norm, 8 layers of 1 head of 16 against 2 of 4",
                {"num_layers": "8"},
            ),
            (
                "Saratchandran et al. 2025",
                "More heads in fewer layers are as good",
                "1 layer of 8 heads of 16 against 2 of 4",
                {"num_layers": "1"},
            ),
            (
                "Shazeer 2019",
                "One head of keys and values is as good as one for each head of queries",
                "2 layers, one against four, with a wider feed-forward layer",
                {"kv_heads": "1"},
            ),
        )
        for equal in design.COSTS
    ),
    *(
        Claim(
            "Liu et al. 2021",
            "Post-norm models too deep to train learn with Admin",
            f"{DEEP_BYTES}, {8 * layers} layers of one head, peak rate {peak}, with Admin against without",
            partial(measures.better, deep(layers, "deep_admin", peak), deep(layers, "deep", peak)),
            DEEP,
        )
        for layers, peak in ((6, "2e-3"), (12, "5e-4"), (18, "5e-4"))
    ),
    Claim(
        "Liu et al. 2021",
        "Deep single-head models in post-norm train with Admin",
        "translation, Multi30k, 1 head x 12 layers, with Admin against without",
        partial(measures.seeds, "deep_translation", "post-norm with Admin, 1 x 12", "post-norm, 1 x 12"),
        DEEP,
    ),
    Claim(
        "Liu et al. 2021",
        "Deep single-head models beat shallow multi-head ones",
        "translation, Multi30k, 1 x 12 with Admin against 4 x 3, both post-norm",
        partial(measures.seeds, "deep_translation", "post-norm with Admin, 1 x 12", "post-norm, 4 x 3"),
        DEEP,
    ),
    Claim(
        "Liu et al. 2021",
        "Deep single-head models beat shallow multi-head ones",
        "translation, Multi30k, 1 x 12 with Admin against 4 x 3 in pre-norm",
        partial(measures.seeds, "deep_translation", "post-norm with Admin, 1 x 12", "pre-norm, 4 x 3"),
        DEEP,
    ),
    Claim(
        "Liu et al. 2021",
        "Deep single-head models beat shallow multi-head ones",
        "language model on WikiText-2's bytes, 1 x 24 with Admin against 8 x 3, both post-norm",
        partial(measures.seeds, "deep_language", "post-norm with Admin, 1 x 24", "post-norm, 8 x 3", lower=True),
        DEEP,
    ),
)
"""Claims in the order of the page."""


def table() -> str:
    """Return all claims with their measurements and verdicts."""
    lines = ["| source | claim | setting here | measured | verdict | more |", "|---" * 6 + "|"]
    for claim in CLAIMS:
        found = claim.measure()
        name = Path(claim.page).stem
        cells = (
            claim.source,
            claim.says,
            claim.setting,
            found.number,
            f"**{found.verdict}**",
            f"[{name}]({claim.page})",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
