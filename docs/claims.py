"""Claims of the papers and of headjax beside measurements, each with a verdict: the table of RESULTS.md.

    python -m docs.tables       # writes it, from the raw results in docs/measurements/

Every number and every verdict is computed from the raw results.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

RAW = Path(__file__).parent / "measurements"


def saved_share(trial: Mapping[str, Any], original: Mapping[str, Any]) -> float:
    """Return the share of the cache that a conversion saves, in eighths: a latent keeps its position besides."""
    return round(8 * (1 - trial["cache"] / original["cache"])) / 8


class Found(NamedTuple):
    """A measurement and its verdict.

    Attributes:
        number: Measured numbers, with interval or p-value.
        verdict: `held`, `did not hold`, or `not decided`.
    """

    number: str
    verdict: str


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


def raw(name: str) -> Any:
    """Return raw results."""
    return json.loads((RAW / f"{name}.json").read_text())


def cells(found: Mapping[str, Any], order: str, remove: str, repair: str) -> list[Mapping[str, Any]]:
    """Return the trials of a cell, one for each draw of calibration examples."""
    named = {"order": order, "remove": remove, "repair": repair}
    return [trial for trial in found["removals"] if all(trial[key] == value for key, value in named.items())]


def loss(
    name: str, remove: str, repair: str, most: float, *, order: str = "reconstruction", points: int = 100
) -> Found:
    """Return the loss of the headline against the whole model, and whether it is at most `most`.

    Args:
        name: Raw results of removals.
        remove: Share of heads.
        repair: Repair of the kept heads.
        most: Greatest loss that the claim allows, in the headline's units.
        order: Order of removal.
        points: 100 to print points of accuracy, 1 for other metrics.
    """
    found = raw(name)
    trials = cells(found, order, remove, repair)
    lost = [-float(trial["against_whole"]["difference"]) for trial in trials]
    mean = float(np.mean(lost))
    p = max(float(trial["against_whole"]["p_value"]) for trial in trials)
    unit, digits = (" points", 2) if points == 100 else ("", 4)
    draws = f", mean of {len(lost)} draws" if len(lost) > 1 else ""
    number = f"{mean * points:.{digits}f}{unit} lost (p = {p:.2g}{draws})"
    return Found(number, "held" if mean <= most else "did not hold")


def removal_of(trial: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what was removed in a trial, and on which draw of calibration examples."""
    return trial["order"], trial["remove"], trial["draw"], tuple(trial["stacks"])


def repaired_and_bare(found: Mapping[str, Any], repair: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return the trials with a repair, each beside that of the same removal without one, where there is one."""
    bare = {removal_of(trial): trial for trial in found["removals"] if trial["repair"] == "none"}
    repaired = (trial for trial in found["removals"] if trial["repair"] == repair)
    return [(trial, bare[removal_of(trial)]) for trial in repaired if removal_of(trial) in bare]


def agrees_better(found: Mapping[str, Any], repair: str) -> int:
    """Return in how many cells a repair brings the model nearer to the whole one."""
    sign = 1.0 if found["agreement"] == "cosine" else -1.0
    pairs = repaired_and_bare(found, repair)
    return sum(sign * (float(own["agreement"]) - float(none["agreement"])) > 0 for own, none in pairs)


def agreement(names: Sequence[str], repair: str) -> Found:
    """Return in how many cells the repaired model agrees better with the whole one than without a repair."""
    sweeps = [raw(name) for name in names]
    better = sum(agrees_better(found, repair) for found in sweeps)
    total = sum(len(repaired_and_bare(found, repair)) for found in sweeps)
    return Found(f"better in {better} of {total} cells", "held" if better == total else "did not hold")


def removal(name: str, remove: str, most: float) -> Found:
    """Return the perplexity over the whole model's without a share of the heads, all maps solved anew."""
    found = raw(name)
    trials = cells(found, "reconstruction", remove, "feed_forward")
    ratio = float(np.mean([trial["metrics"]["perplexity"] for trial in trials])) / found["baseline"]["perplexity"]
    return Found(f"{ratio:.3f} times the whole model's perplexity", "held" if ratio <= most else "did not hold")


def removal_against_others(name: str) -> Found:
    """Return at how many shares order `reconstruction` with all maps solved anew has the lowest perplexity."""
    found = raw(name)
    lowest: dict[str, tuple[float, bool]] = {}
    for trial in found["removals"]:
        ours = (trial["order"], trial["repair"]) == ("reconstruction", "feed_forward")
        rival = (float(trial["metrics"]["perplexity"]), ours)
        lowest[trial["remove"]] = min(lowest.get(trial["remove"], rival), rival)
    won = sum(ours for _, ours in lowest.values())
    return Found(f"best at {won} of {len(lowest)} shares", "held" if won == len(lowest) else "did not hold")


def perplexity_without(found: Mapping[str, Any], stack: str, share: str) -> list[float]:
    """Return of each model the perplexity without a share of a stack's heads, over that with all heads."""
    return [
        float(trial["metrics"]["perplexity"]) / float(model["baseline"]["perplexity"])
        for model in found["models"]
        for trial in model["removals"]
        if (",".join(trial["stacks"]) or "all", trial["remove"]) == (stack, share)
    ]


def needed_more(name: str, stack: str, other: str, share: str) -> Found:
    """Return what removals from two stacks cost; the claim is that the first costs more, by a paired t-test.

    Logarithms of perplexities over the whole model's are paired by model.
    """
    found = raw(name)
    costs = [perplexity_without(found, each, share) for each in (stack, other)]
    p = float(stats.ttest_rel(*np.log(costs)).pvalue)
    verdict = "not decided" if p >= 0.05 else "held" if np.mean(costs[0]) > np.mean(costs[1]) else "did not hold"
    means = " against ".join(f"{np.mean(each):.2f}" for each in costs)
    return Found(f"perplexity times {means} ({len(costs[0])} seeds), p = {p:.2g}", verdict)


def cache(name: str, saved: float, most: float) -> Found:
    """Return the perplexity of a calibrated latent over the original's, at a share of the cache saved."""
    (ratio,) = _ratios(name, saved, ours=True)
    return Found(f"{ratio:.2f} times the original's perplexity", "held" if ratio <= most else "did not hold")


def cache_against_others(name: str) -> Found:
    """Return at how many sizes the calibrated latent is below every other conversion of that size."""
    sizes = (0.25, 0.5, 0.75, 0.875)
    won = sum(min(_ratios(name, saved, ours=True)) < min(_ratios(name, saved, ours=False)) for saved in sizes)
    return Found(f"best at {won} of {len(sizes)} sizes", "held" if won == len(sizes) else "did not hold")


def _ratios(name: str, saved: float, *, ours: bool) -> list[float]:
    """Return perplexities over the original's at a share of the cache saved, without training."""
    original, *trials = raw(name)["trials"]
    whole = float(original["metrics"]["perplexity"])
    return [
        float(trial["metrics"]["perplexity"]) / whole
        for trial in trials
        if (trial["to"].startswith("latent:rank") and trial["variant"] == "calibrated") is ours
        and trial["variant"] != "fine-tuned"
        and saved_share(trial, original) == saved
    ]


def conversion(name: str, to: str, variant: str, most: float) -> Found:
    """Return the points of accuracy lost by a conversion of an encoder, and whether they are at most `most`."""
    trial = next(trial for trial in raw(name)["trials"] if (trial["to"], trial["variant"]) == (to, variant))
    test = trial["against_original"]
    verdict = "held" if -test["difference"] <= most else "did not hold"
    return Found(f"{0.0 - 100 * test['difference']:.2f} points lost (p = {test['p_value']:.2g})", verdict)


def ranks_needed_heads(order: str) -> Found:
    """Return the AUROC of an order on models whose necessary heads are known."""
    rows = [row for row in raw("ground_truth_heads")["rows"] if row["order"] == order]
    values = [float(row["auroc"]) for row in rows]
    number = f"AUROC {np.mean(values):.2f}, lowest {min(values):.2f}, of {len(values)} models"
    return Found(number, "held" if min(values) > 0.9 else "did not hold")


def seeds(name: str, one: str, other: str, *, lower: bool = False) -> Found:
    """Return means of two kinds of runs with their ranges; the claim is that the first is better."""
    found = raw(name)
    better, worse = ([float(value) for value in found["runs"][kind]] for kind in (one, other))
    apart = max(better) < min(worse) if lower else min(better) > max(worse)
    means = " against ".join(
        f"{np.mean(values):.3g} ({min(values):.3g} to {max(values):.3g})" for values in (better, worse)
    )
    number = f"{found['metric']} {means}, {len(better)} and {len(worse)} seeds"
    return Found(number, "held" if apart else "did not hold")


class Runs(NamedTuple):
    """Runs of a grid.

    Attributes:
        grid: Name of its raw results.
        settings: Settings that the runs have among theirs.
    """

    grid: str
    settings: Mapping[str, str]

    def values(self) -> dict[int, float]:
        """Return the metric by seed, of the runs that did not diverge."""
        found = raw(f"grid_{self.grid}")
        runs = [run for run in found["results"] if self.settings.items() <= run["settings"].items()]
        return {run["seed"]: float(run["metrics"][found["metric"]]) for run in runs if run["diverged"] is None}


def lower(one: Runs, other: Runs) -> Found:
    """Return the mean losses of two kinds of runs; the claim is that the first is lower, by a paired t-test.

    Runs of one seed read the same batches, which is what pairs them.
    """
    first, second = _paired(one, other)
    p = float(stats.ttest_rel(first, second).pvalue)
    verdict = "not decided" if p >= 0.05 else "held" if np.mean(first) < np.mean(second) else "did not hold"
    return Found(f"{_against(first, second)}, p = {p:.2g}", verdict)


def no_worse(one: Runs, other: Runs, most: float) -> Found:
    """Return the mean losses of two kinds of runs; the claim is that the first is at most `most` above the second.

    The verdict is that of the paired difference's 95 % confidence interval: wholly below `most`, or wholly above it.
    """
    first, second = _paired(one, other)
    interval = stats.ttest_rel(first, second).confidence_interval()
    verdict = "held" if interval.high <= most else "did not hold" if interval.low > most else "not decided"
    return Found(f"{_against(first, second)}, difference {interval.low:+.3f} to {interval.high:+.3f}", verdict)


def _paired(one: Runs, other: Runs) -> tuple[list[float], list[float]]:
    first, second = one.values(), other.values()
    both = sorted(first.keys() & second.keys())
    return [first[seed] for seed in both], [second[seed] for seed in both]


def _against(first: Sequence[float], second: Sequence[float]) -> str:
    return f"{np.mean(first):.3f} against {np.mean(second):.3f} nats ({len(first)} seeds)"


MINILM = "all-MiniLM-L6-v2, 72 heads"
SST2 = f"{MINILM}, fine-tuned on SST-2; all 872 sentences"
STSB = f"{MINILM}, as published, STS-B; all 1,500 pairs"
HEADS, CONVERSIONS, DEEP = "docs/heads.md", "docs/conversions.md", "docs/deep_training.md"
HEAD_SIZE = "docs/head_size.md"

BYTES = "language model on WikiText-2's bytes, two layers of width 128"
DEEP_BYTES = "language model on WikiText-2's bytes, width 32, post-norm"


def shape(heads: int, head_dim: int, hidden: int = 512) -> Runs:
    """Return the runs with this many heads of this size, and a feed-forward layer of this width."""
    return Runs("head_shapes", {"heads": str(heads), "head_dim": str(head_dim), "hidden": str(hidden)})


def shared(head_dim: int, shared_dim: int) -> Runs:
    """Return the runs whose heads have queries of this size each, or share queries of `shared_dim`."""
    return Runs("shared_keys", {"head_dim": str(head_dim), "shared_dim": str(shared_dim)})


def deep(num_layers: int, variant: str, peak: str) -> Runs:
    """Return the runs of layers of eight heads, rebuilt as eight times as many of one head, at a peak rate."""
    return Runs("deep_layers", {"num_layers": str(num_layers), "variant": variant, "peak": peak})


CLAIMS = (
    Claim(
        "Michel et al. 2019",
        "Many heads can go at test time without a noticeable loss",
        f"{SST2}; 25 % removed by importance, nothing repaired; at most 1 point",
        partial(loss, "removals_sst2_phrases", "25%", "none", 0.01, order="importance"),
        HEADS,
    ),
    Claim(
        "K-prune, 2023; Kwon et al. 2022",
        "Solving kept maps anew, without training, brings the model back",
        "three grids on MiniLM; agreement with the whole model, output projections alone",
        partial(agreement, ["removals_sst2", "removals_sst2_phrases", "removals_stsb"], "reconstruct"),
        HEADS,
    ),
    *(
        Claim(
            "headjax's goal",
            f"{share} of the heads cost at most {100 * most:.1f} points, without labels or training",
            f"{SST2}; order `reconstruction`, W_O and feed-forward solved anew, calibrated on sentences",
            partial(loss, "removals_sst2", share, "feed_forward", most),
            HEADS,
        )
        for share, most in (("50%", 0.003), ("60%", 0.005), ("75%", 0.01))
    ),
    *(
        Claim(
            "headjax's goal",
            f"{share} of the heads cost at most {most} of Spearman's correlation, without labels or training",
            f"{STSB}; order `reconstruction`, W_O and feed-forward solved anew",
            partial(loss, "removals_stsb", share, "feed_forward", most, points=1),
            HEADS,
        )
        for share, most in (("60%", 0.003), ("75%", 0.012), ("90%", 0.03))
    ),
    *(
        Claim(
            "headjax's goal",
            f"{saved:.0%} of the cache saved costs at most {most} times the perplexity, without training",
            f"{shape} shape of 5.8 M parameters, WikiText-2's validation split; latent, calibrated",
            partial(cache, f"conversions_{shape}", saved, most),
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
            partial(cache_against_others, f"conversions_{shape}"),
            CONVERSIONS,
        )
        for shape in ("llama", "qwen3")
    ),
    *(
        Claim(
            "headjax's goal",
            "50% of a decoder's heads cost at most 1.05 times the perplexity, without training",
            f"{shape} shape; order `reconstruction`, W_O and feed-forward solved anew; 128 contexts, one draw",
            partial(removal, f"removals_decoder_{shape}", "50%", 1.05),
            HEADS,
        )
        for shape in ("llama", "qwen3")
    ),
    *(
        Claim(
            "headjax's goal",
            "Order `reconstruction` with repair is below every other row at 10, 20, 30 and 50 % of the heads",
            f"{shape} shape; against `importance` and against no repair",
            partial(removal_against_others, f"removals_decoder_{shape}"),
            HEADS,
        )
        for shape in ("llama", "qwen3")
    ),
    Claim(
        "Michel et al. 2019",
        "Importance, a gradient, finds the heads that a model needs",
        "induction circuits by hand, 2 needed heads of 32; AUROC above 0.9 on every model",
        partial(ranks_needed_heads, "importance"),
        HEADS,
    ),
    *(
        Claim(
            "Michel et al. 2019",
            f"Attention of the decoder to the encoder needs its heads more than self-attention of the {other} does",
            "translation, Multi30k, 3 stacks of 24 heads; 1,014 captions; 60 % of a stack removed by importance",
            partial(needed_more, "stacks_translation", "cross", other, "60%"),
            HEADS,
        )
        for other in ("encoder", "decoder")
    ),
    *(
        Claim(
            "Cordonnier et al. 2020",
            f"Queries and keys of a trained model shrink to {share} of their size without retraining",
            f"{SST2}; collaborative, {size} of 384 dimensions, {variant}; at most 1 point",
            partial(conversion, "sharing_sst2", f"collaborative:shared_dim={size}", variant, 0.01),
            CONVERSIONS,
        )
        for share, size, variant in (
            ("half", 192, "calibrated"),
            ("a third", 128, "plain"),
            ("a third", 128, "calibrated"),
        )
    ),
    Claim(
        "Bhojanapalli et al. 2020",
        "Heads of size width / heads become too small as their number grows",
        f"{BYTES}, texts of 128: 4 heads of 32 against 32 of 4",
        partial(lower, shape(4, 32), shape(32, 4)),
        HEAD_SIZE,
    ),
    Claim(
        "Bhojanapalli et al. 2020",
        "Heads of a fixed size get better with their number",
        f"{BYTES}: 16 heads of 32 against 4 of 32",
        partial(lower, shape(16, 32), shape(4, 32)),
        HEAD_SIZE,
    ),
    Claim(
        "Bhojanapalli et al. 2020",
        "At equal parameters a fixed head size is better than width / heads",
        f"{BYTES}: 16 heads of 32 against 16 of 8 with a wider feed-forward layer",
        partial(lower, shape(16, 32), shape(16, 8, 1280)),
        HEAD_SIZE,
    ),
    Claim(
        "Cordonnier et al. 2020",
        "Shared keys need a quarter of the size of concatenated ones, trained from scratch",
        f"{BYTES}: shared queries and keys of 32 against four heads of 32 each; at most 0.02 nats worse",
        partial(no_worse, shared(32, 32), shape(4, 32), 0.02),
        HEAD_SIZE,
    ),
    Claim(
        "Cordonnier et al. 2020",
        "At equal key size, shared keys are better than concatenated ones",
        f"{BYTES}, trained from scratch: shared queries and keys of 32 against four heads of 8",
        partial(lower, shared(32, 32), shared(8, 0)),
        HEAD_SIZE,
    ),
    *(
        Claim(
            "Liu et al. 2021",
            "Post-norm models too deep to train learn with Admin",
            f"{DEEP_BYTES}, {8 * layers} layers of one head, peak rate {peak}, with Admin against without",
            partial(lower, deep(layers, "deep_admin", peak), deep(layers, "deep", peak)),
            DEEP,
        )
        for layers, peak in ((6, "2e-3"), (12, "5e-4"))
    ),
    Claim(
        "Liu et al. 2021",
        "Deep single-head models in post-norm train with Admin",
        "translation, Multi30k, 1 head x 12 layers, with Admin against without",
        partial(seeds, "deep_translation", "post-norm with Admin, 1 x 12", "post-norm, 1 x 12"),
        DEEP,
    ),
    Claim(
        "Liu et al. 2021",
        "Deep single-head models beat shallow multi-head ones",
        "translation, Multi30k, 1 x 12 with Admin against 4 x 3, both post-norm",
        partial(seeds, "deep_translation", "post-norm with Admin, 1 x 12", "post-norm, 4 x 3"),
        DEEP,
    ),
    Claim(
        "Liu et al. 2021",
        "Deep single-head models beat shallow multi-head ones",
        "translation, Multi30k, 1 x 12 with Admin against 4 x 3 in pre-norm",
        partial(seeds, "deep_translation", "post-norm with Admin, 1 x 12", "pre-norm, 4 x 3"),
        DEEP,
    ),
    Claim(
        "Liu et al. 2021",
        "Deep single-head models beat shallow multi-head ones",
        "language model on WikiText-2's bytes, 1 x 24 with Admin against 8 x 3, both post-norm",
        partial(seeds, "deep_language", "post-norm with Admin, 1 x 24", "post-norm, 8 x 3", lower=True),
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
