"""The plots of RESULTS.md, docs/measurements/NAME.png, described for those who do not see them.

python -m docs.tables       # draws them, and writes the descriptions
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from docs import plots
from docs.design import BASELINE
from docs.measures import RAW
from headjax.report.style import Plot

CACHES = {
    "latent (ours)": ("latent", "calibrated"),
    "latent, SVD": ("latent:error=weights", "plain"),
    "latent, ASVD": ("latent:error=magnitudes", "calibrated"),
    "groups, mean": ("grouped:pooling=mean", "plain"),
    "groups, aligned": ("grouped:pooling=aligned", "plain"),
    "groups, fitted": ("grouped", "calibrated"),
}
"""Conversions of decoders by their labels in plots: target without its size, and variant."""

PLOTS: Mapping[str, Callable[[], Plot]] = {
    "test_time_sst2": partial(
        plots.removals,
        "removals_sst2_seeds",
        "Accuracy on SST-2",
        "Heads of three MiniLMs removed, nothing repaired",
        ("importance", "random"),
    ),
    "single_heads_translation": partial(
        plots.single_heads, "ablations_translation", "Translation: each head removed alone, 3 models", "each"
    ),
    "transfer_translation": partial(
        plots.transfer,
        "transfer_translation",
        "Translation: perplexity without each head over that with all, 3 models",
        "newstest2013",
        "Multi30k's validation captions",
        "News",
    ),
    "training_translation": partial(
        plots.training, "training_translation", "Translation: importance of heads during training, 3 runs"
    ),
    "stacks_translation": partial(plots.stacks, "stacks_translation", "Translation: heads removed from one stack"),
    "ground_truth": partial(
        plots.ground_truth,
        "Heads that a model needs, found by scores and orders",
        (
            "ablation",
            "subset",
            "hies",
            "importance_token",
            "fisher",
            "importance",
            "fisher_blocks",
            "reconstruction_labels",
            "reconstruction",
            "random",
            "entropy",
            "output_norm",
            "context_norm",
        ),
    ),
    "repair_sst2": partial(
        plots.removals,
        "removals_sst2_seeds",
        "Accuracy on SST-2",
        "Heads of three MiniLMs removed by reconstruction, by what is solved anew",
        ("reconstruction",),
    ),
    "removals_stsb": partial(
        plots.removals,
        "removals_stsb",
        "Spearman's correlation on STS-B",
        "Heads of all-MiniLM-L6-v2 removed by reconstruction, by what is solved anew",
        ("reconstruction",),
    ),
    "removals_decoder_llama": partial(
        plots.removals,
        "removals_decoder_llama",
        "Perplexity per token",
        "Heads of a Llama shape of 5.8 M parameters removed",
        ("reconstruction", "importance"),
    ),
    "sharing_squad": partial(
        plots.sharing, "sharing_squad", "A MiniLM for SQuAD with shared queries and keys: F1 by size"
    ),
    "grid_keys_translation": partial(
        plots.grid,
        "keys_translation",
        "Translation, trained from scratch: size of queries and keys",
        "Size of queries and keys, all heads together",
        {"concatenated heads": {"shared_dim": "0"}, "shared keys": {"head_dim": "0"}},
        {"head_dim": 8.0, "shared_dim": 1.0},
    ),
    "conversions_llama": partial(
        plots.caches, "conversions_llama", "A Llama shape of 5.8 M parameters with a smaller cache, not trained", CACHES
    ),
    "composition_translation": partial(
        plots.composition, "composition_translation", "Translation: heads removed and keys shared, fine-tuned"
    ),
    "patterns_fitted": partial(plots.patterns, "patterns_fitted", "Random patterns of 16 tokens, fitted by one head"),
    "grid_head_shapes": partial(
        plots.grid,
        "head_shapes",
        "Language models of width 64 by number and size of heads",
        "Heads",
        {
            "4 heads of 16": {"head_dim": "16"},
            "16 heads of 4": {"head_dim": "4", "hidden": "256"},
            "heads of 32": {"head_dim": "32"},
            "16 heads of 4, wider feed-forward": {"hidden": "1152"},
        },
        {"heads": 1.0},
    ),
    "design_heads": partial(
        plots.design,
        "heads",
        "Eight heads in one to eight layers, 125,000 parameters",
        {
            "1 layer of 8 heads": {"num_layers": "1"},
            "2 layers of 4 heads": BASELINE,
            "4 layers of 2 heads": {"num_layers": "4"},
            "8 layers of 1 head": {"num_layers": "8"},
        },
    ),
    "design_groups": partial(
        plots.design,
        "heads",
        "Two layers by heads and key heads, 125,000 parameters",
        {
            "4 heads of 16": BASELINE,
            "4 heads of 16, 1 key head": {"kv_heads": "1"},
            "1 head of 64": {"head_dim": "64"},
            "2 heads of 16": {"heads": "2", "num_layers": "2"},
        },
    ),
    "grid_deep_layers": partial(
        plots.grid,
        "deep_layers",
        "Layers of one head in post-norm, width 32",
        "Layers",
        {
            "without Admin, peak rate 2e-3": {"variant": "deep", "peak": "2e-3"},
            "with Admin, peak rate 2e-3": {"variant": "deep_admin", "peak": "2e-3"},
            "without Admin, peak rate 5e-4": {"variant": "deep", "peak": "5e-4"},
            "with Admin, peak rate 5e-4": {"variant": "deep_admin", "peak": "5e-4"},
        },
        {"num_layers": 8.0},
    ),
    "deep_translation": partial(plots.seeds, "deep_translation", "Translation: heads x layers, three seeds each"),
}
"""Plots by name."""


def markdown(name: str) -> str:
    """Return the picture of RESULTS.md."""
    return f"![{PLOTS[name]().alt}](docs/measurements/{name}.png)"


def draw() -> None:
    """Write all plots."""
    for name, plot in PLOTS.items():
        (RAW / f"{name}.png").write_bytes(plot().png(dpi=100))
