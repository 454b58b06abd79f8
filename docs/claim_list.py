"""The claims of RESULTS.md: who says what, what was measured here, by which commands; `docs.claims` prints them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from docs import composition, design, measures, patterns, scaling, stacks
from docs.claims import Claim, Row
from docs.measures import Runs

MICHEL, CORDONNIER = "Michel et al. 2019", "Cordonnier et al. 2020"
LIU, BHOJANAPALLI = "Liu et al. 2021", "Bhojanapalli et al. 2020"
GOAL = "headjax's goal"

HEADS, CONVERSIONS, DEEP = "docs/heads.md", "docs/conversions.md", "docs/deep_training.md"
HEAD_SIZE, BENCHMARKS = "docs/head_size.md", "docs/benchmarks.md"

SST2 = "3 MiniLMs on SST-2"
SQUAD = "a MiniLM on SQuAD, F1"
STSB = "MiniLM on STS-B"
TRANSLATION = "3 translation models"
SMALL_TRANSLATION = "translation from scratch"
BYTES = "language models of width 64"
DEEP_BYTES = "post-norm language models of width 32"


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


def at_equal_cost(setting: str, one: Mapping[str, str]) -> tuple[Row, ...]:
    """Return a shape beside the baseline after equal time, operations and steps."""
    return tuple(
        Row(
            f"{BYTES}, equal {equal}: {setting}",
            partial(design.no_worse, "heads", one, design.BASELINE, 0.02, equal=equal),
        )
        for equal in ("time", "operations", "steps")
    )


def said(text: str) -> Callable[[], str]:
    """Return a time that the page of the claim states, for results that do not have their own."""
    return lambda: text


GRIDS = ("removals_sst2_seeds", "removals_sst2", "removals_sst2_phrases", "removals_stsb")
"""Raw results of removals from MiniLMs, with and without repairs."""

REMOVING_HEADS = (
    Claim(
        "test_time",
        "Heads that are not needed at test time",
        MICHEL,
        "Many heads can go at test time without a noticeable loss",
        [
            Row(
                f"{SST2}, {share} removed by importance: at most 1 point",
                partial(measures.loss, "removals_sst2_seeds", share, "none", 0.01, order="importance"),
            )
            for share in ("25%", "50%")
        ],
        "headjax sweep --remove",
        partial(measures.command_time, "removals_sst2_seeds"),
        HEADS,
    ),
    Claim(
        "single_heads",
        "One head less, one head left",
        MICHEL,
        "Most heads can be removed alone, and most layers keep one head, without a significant change",
        [
            Row(
                f"{setting}, {what}: {test}",
                partial(measure, name),
            )
            for setting, name, test in (
                (SST2, "ablations_sst2", "McNemar's test"),
                (TRANSLATION, "ablations_translation", "t-test on losses"),
            )
            for what, measure in (
                ("each head alone", stacks.most_can_go),
                ("each layer's best head alone", stacks.one_is_enough),
            )
        ],
        "headjax ablate",
        partial(measures.command_time, "ablations_sst2"),
        HEADS,
    ),
    Claim(
        "other_data",
        "The same heads on other data",
        MICHEL,
        "Heads that matter on one data set matter on another",
        [
            Row(f"{setting}, each head alone: {own} against {name}", partial(stacks.transfers, file, task))
            for setting, own, name, file, task in (
                (TRANSLATION, "Multi30k", "other captions", "transfer_translation", "test_2017_mscoco"),
                (TRANSLATION, "Multi30k", "news", "transfer_translation", "newstest2013"),
                (SST2, "sentences", "held-out phrases", "transfer_sst2", "heldout_from_train.tsv"),
            )
        ],
        "headjax ablate",
        partial(measures.command_time, "transfer_sst2"),
        HEADS,
    ),
    Claim(
        "during_training",
        "Heads during training",
        MICHEL,
        "Which heads matter is settled early in training, and they can go cheaply only late",
        [
            Row(
                f"{TRANSLATION}: importance at checkpoints against that at the end",
                partial(stacks.settles, "training_translation"),
            ),
            Row(
                f"{TRANSLATION}: 40 % removed cost less at step 1,000 than at 100",
                partial(stacks.later_is_cheaper, "training_translation", "40%"),
            ),
        ],
        "headjax report --run",
        said("not recorded"),
        HEADS,
    ),
    Claim(
        "kinds",
        "Encoder, decoder, and attention between them",
        MICHEL,
        "Attention of the decoder to the encoder needs its heads more than self-attention does",
        [
            Row(
                f"{TRANSLATION}, 60 % removed: more than self-attention of the {other}",
                partial(stacks.needed_more, "stacks_translation", "cross", other, "60%"),
            )
            for other in ("encoder", "decoder")
        ],
        "headjax sweep --stacks",
        said("not recorded"),
        HEADS,
    ),
    Claim(
        "ground_truth",
        "Scores against the truth",
        MICHEL,
        "Importance, a gradient, finds the heads that a model needs",
        [
            Row(
                "25 circuits by hand: AUROC above 0.9 on each",
                partial(measures.ranks_needed_heads, "importance"),
            )
        ],
        "python -m docs.ground_truth",
        said("not recorded"),
        HEADS,
    ),
    Claim(
        "repair",
        "Repair without training",
        "K-prune, 2023; Kwon et al. 2022",
        "Solving kept maps anew, without training, brings the model back",
        [
            Row(
                "5 MiniLMs, W_O solved anew: nearer to the whole model",
                partial(measures.agreement, GRIDS, "reconstruct"),
            )
        ],
        "headjax sweep --repair",
        partial(measures.removal_time, *GRIDS),
        HEADS,
    ),
    Claim(
        "budgets",
        "Heads of encoders without labels",
        GOAL,
        "Half to nine tenths of an encoder's heads go for little, without labels or training",
        [
            *(
                Row(
                    f"{SST2}, {share} removed: at most {100 * most:.1f} points",
                    partial(measures.loss, "removals_sst2_seeds", share, "feed_forward", most),
                )
                for share, most in (("50%", 0.003), ("75%", 0.01))
            ),
            *(
                Row(
                    f"{STSB}, {share} removed: at most {most} of Spearman's correlation",
                    partial(measures.loss, "removals_stsb", share, "feed_forward", most, points=1),
                )
                for share, most in (("60%", 0.003), ("75%", 0.012), ("90%", 0.03))
            ),
        ],
        "headjax sweep --repair",
        partial(measures.removal_time, "removals_sst2_seeds", "removals_stsb"),
        HEADS,
    ),
    Claim(
        "decoders",
        "Heads of decoders without labels",
        GOAL,
        "Half of a decoder's heads cost at most 1.05 times the perplexity; no order with repair beats ours",
        [
            *(
                Row(
                    f"{model} shape, 50 % removed: at most 1.05 times the perplexity",
                    partial(measures.removal, f"removals_decoder_{model}", "50%", 1.05),
                )
                for model in ("llama", "qwen3")
            ),
            *(
                Row(
                    f"{model} shape, 10 to 50 % removed: better than any other row",
                    partial(measures.removal_against_others, f"removals_decoder_{model}"),
                )
                for model in ("llama", "qwen3")
            ),
        ],
        "headjax sweep --repair",
        partial(measures.removal_time, "removals_decoder_llama", "removals_decoder_qwen3"),
        HEADS,
    ),
)

SHARING = (
    Claim(
        "shrinking",
        "Trained queries and keys, made to share",
        CORDONNIER,
        "Queries and keys of a trained model shrink to a half or a third of their size without retraining",
        [
            *(
                Row(
                    f"{setting}, {size} of 384 dimensions, {variant}: at most 1 point",
                    partial(measures.conversion, name, f"collaborative:shared_dim={size}", variant, 0.01),
                )
                for setting, name, tuned in (
                    (SST2, "sharing_sst2_seeds", ()),
                    (SQUAD, "sharing_squad", ("fine-tuned",)),
                )
                for size in (192, 128)
                for variant in ("calibrated", "plain", *tuned)
            ),
            *(
                Row(
                    f"{STSB}, {size} of 384 dimensions, {variant}: at most 0.01 of Spearman's correlation",
                    partial(measures.conversion, "sharing_stsb", f"collaborative:shared_dim={size}", variant, 0.01, 1),
                )
                for size in (192, 128)
                for variant in ("calibrated", "plain")
            ),
        ],
        "headjax sweep --to",
        partial(measures.command_time, "sharing_sst2_seeds"),
        CONVERSIONS,
    ),
    Claim(
        "from_scratch",
        "Shared queries and keys from scratch",
        CORDONNIER,
        "At equal size, shared keys are better than concatenated ones, and they need a half or a quarter of the size",
        [
            *(
                Row(
                    f"{SMALL_TRANSLATION}: shared {size} better than 8 heads of {size // 8}",
                    partial(measures.better, keys(size, shared=True), keys(size)),
                )
                for size in (16, 32, 64, 128)
            ),
            *(
                Row(
                    f"{SMALL_TRANSLATION}: shared {size} at most 0.5 BLEU worse than 8 heads of 16",
                    partial(measures.no_worse, keys(size, shared=True), keys(128), 0.5),
                )
                for size in (64, 32)
            ),
            Row(
                f"{BYTES}: shared 16 better than 4 heads of 4",
                partial(measures.better, shared(16, 16), shared(4, 0)),
            ),
            Row(
                f"{BYTES}: shared 16 at most 0.02 nats worse than 4 heads of 16",
                partial(measures.no_worse, shared(16, 16), shape(4, 16), 0.02),
            ),
        ],
        "headjax grid",
        partial(measures.grid_time, "keys_translation", "shared_keys"),
        HEAD_SIZE,
    ),
    Claim(
        "caches",
        "Smaller caches of decoders",
        GOAL,
        "A calibrated latent halves or quarters a decoder's cache at little cost, and no other conversion is better",
        [
            *(
                Row(
                    f"{model} shape, {saved:.0%} of the cache saved: at most {most} times the perplexity",
                    partial(measures.cache, f"conversions_{model}", saved, most),
                )
                for model in ("llama", "qwen3")
                for saved, most in ((0.5, 1.05), (0.75, 1.25))
            ),
            *(
                Row(
                    f"{model} shape, 25 to 87.5 % saved: better than any other conversion",
                    partial(measures.cache_against_others, f"conversions_{model}"),
                )
                for model in ("llama", "qwen3")
            ),
        ],
        "headjax sweep --to",
        said("not recorded"),
        CONVERSIONS,
    ),
    Claim(
        "composition",
        "Heads removed and keys shared, together",
        "headjax's question",
        "At equal parameters, heads removed and then keys shared are better than one alone, or the other order",
        [
            Row(
                f"{TRANSLATION}, {share} % of the parameters: better than {than}",
                partial(composition.better, "composition_translation", share, "prune-convert", others),
            )
            for share in ("89", "93")
            for than, others in (
                ("the better one alone", ("prune", "convert")),
                ("keys shared and then heads removed", ("convert-prune",)),
            )
        ],
        "headjax prune, convert",
        said("not recorded"),
        HEADS,
    ),
)

SIZE_AND_DEPTH = (
    Claim(
        "theorem",
        "Which patterns a head can fit",
        BHOJANAPALLI,
        "A head as large as the length fits any pattern (theorem 1), one of half of it does not",
        [
            Row(
                f"{kind} patterns of 16 tokens: fitted to 0.001 nats",
                partial(patterns.fits_from_the_length_on, "patterns_fitted", kind, 1e-3),
            )
            for kind in patterns.KINDS
        ],
        "python -m docs.patterns",
        said("a minute on one core"),
        HEAD_SIZE,
    ),
    Claim(
        "attention_matters",
        "A condition of what follows",
        "condition",
        "The models are trained until attention matters: without any head, perplexity per word at least doubles",
        [
            Row(
                f"{BYTES}, 4 heads of 16",
                partial(stacks.attention_matters, "stacks_bytes", 2.0),
            )
        ],
        "headjax sweep --remove",
        said("a minute of training for each model"),
        HEAD_SIZE,
    ),
    Claim(
        "bottleneck",
        "Number and size of heads",
        BHOJANAPALLI,
        "Heads of size width / heads become too small as their number grows; heads of a fixed size do not",
        [
            Row(
                f"{BYTES}: 4 heads of 16 better than 16 of 4",
                partial(measures.better, shape(4, 16), shape(16, 4)),
            ),
            Row(
                f"{BYTES}: 16 heads of 32 better than 4 of 32",
                partial(measures.better, shape(16, 32), shape(4, 32)),
            ),
            Row(
                f"{BYTES}, equal parameters: 16 heads of 32 better than 16 of 4",
                partial(measures.better, shape(16, 32), shape(16, 4, 1152)),
            ),
        ],
        "headjax grid",
        partial(measures.grid_time, "head_shapes", "head_rates"),
        HEAD_SIZE,
    ),
    *(
        Claim(
            name,
            heading,
            source,
            says,
            at_equal_cost(setting, one),
            "headjax grid",
            partial(design.time, "heads"),
            HEAD_SIZE,
        )
        for name, heading, source, says, setting, one in (
            (
                "more_heads_less_depth",
                "More heads, less depth",
                "Saratchandran et al. 2025",
                "More heads in fewer layers are as good as fewer heads in more",
                "1 layer of 8 heads at most 0.02 nats worse than 2 of 4",
                {"num_layers": "1"},
            ),
            (
                "one_head_many_layers",
                "One head, many layers",
                LIU,
                "Deep single-head models are as good as shallow multi-head ones",
                "8 layers of 1 head at most 0.02 nats worse than 2 of 4",
                {"num_layers": "8"},
            ),
            (
                "one_key_head",
                "One head of keys and values",
                "Shazeer 2019",
                "One head of keys and values is as good as one for each head of queries",
                "1 key head at most 0.02 nats worse than 4",
                {"kv_heads": "1"},
            ),
        )
    ),
    Claim(
        "admin",
        "Admin at depth",
        LIU,
        "Post-norm models too deep to train learn with Admin",
        [
            *(
                Row(
                    f"{DEEP_BYTES}, {8 * layers} layers: better with Admin",
                    partial(measures.better, deep(layers, "deep_admin", peak), deep(layers, "deep", peak)),
                )
                for layers, peak in ((18, "5e-4"), (12, "5e-4"), (6, "2e-3"))
            ),
            Row(
                f"{SMALL_TRANSLATION}, 12 layers of 1 head: better with Admin",
                partial(measures.seeds, "deep_translation", "post-norm with Admin, 1 x 12", "post-norm, 1 x 12"),
            ),
        ],
        "headjax grid",
        partial(measures.grid_time, "deep_layers"),
        DEEP,
    ),
    Claim(
        "deep_beats",
        "Deep single-head models against shallow ones",
        LIU,
        "Deep single-head models beat shallow multi-head ones once they train",
        [
            Row(
                f"{SMALL_TRANSLATION}: 12 layers of 1 head with Admin better than 3 of 4 in post-norm",
                partial(measures.seeds, "deep_translation", "post-norm with Admin, 1 x 12", "post-norm, 4 x 3"),
            ),
            Row(
                f"{SMALL_TRANSLATION}: 12 layers of 1 head with Admin better than 3 of 4 in pre-norm",
                partial(measures.seeds, "deep_translation", "post-norm with Admin, 1 x 12", "pre-norm, 4 x 3"),
            ),
            Row(
                f"{BYTES}: 24 layers of 1 head with Admin better than 3 of 8 in post-norm",
                partial(measures.seeds, "deep_language", "post-norm with Admin, 1 x 24", "post-norm, 8 x 3"),
            ),
        ],
        "headjax train",
        said("not recorded"),
        DEEP,
    ),
    Claim(
        "costs",
        "Cost curves",
        "theory",
        "Time grows with length, depth, heads and batch as the operations do, to 0.15 of the exponent",
        [
            Row(
                "decoder of width 128, six operations, one factor at a time",
                partial(scaling.grows_as_counted, "scaling_cpu"),
            )
        ],
        "headjax bench scaling",
        partial(scaling.time, "scaling_cpu"),
        BENCHMARKS,
    ),
)

CLAIMS = (*REMOVING_HEADS, *SHARING, *SIZE_AND_DEPTH)
"""Claims in the order of the page."""
