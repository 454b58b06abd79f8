"""Measurements of claims, with verdicts, from the raw results in docs/measurements/; `docs.claims` has the claims."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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


def raw(name: str) -> Any:
    """Return raw results."""
    return json.loads((RAW / f"{name}.json").read_text())


def rounded(value: Any) -> Any:
    """Return the same with numbers of six digits, which is more than a page shows."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return value


def mean_and_range(values: Sequence[float], digits: int = 2) -> str:
    """Return the mean, and the lowest and the highest value in brackets, of so many decimals."""
    return f"{np.mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


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

    @property
    def metric(self) -> str:
        """Name of the metric that the grid was collected for."""
        return str(raw(f"grid_{self.grid}")["metric"])

    def values(self) -> dict[int, float]:
        """Return the metric by seed, of the runs that did not diverge."""
        found = raw(f"grid_{self.grid}")
        runs = [run for run in found["results"] if self.settings.items() <= run["settings"].items()]
        return {run["seed"]: float(run["metrics"][found["metric"]]) for run in runs if run["diverged"] is None}


def better(one: Runs, other: Runs) -> Found:
    """Return the means of two kinds of runs; the claim is that the first is better, by a paired t-test.

    Runs of one seed read the same batches, which is what pairs them.
    """
    first, second = _paired(one, other)
    metric = METRICS[one.metric]
    p = float(stats.ttest_rel(first, second).pvalue)
    gain = metric.sign * (np.mean(first) - np.mean(second))
    verdict = "not decided" if p >= 0.05 else "held" if gain > 0 else "did not hold"
    return Found(f"{_against(first, second, metric)}, p = {p:.2g}", verdict)


def no_worse(one: Runs, other: Runs, most: float) -> Found:
    """Return the means of two kinds of runs; the claim is that the first is at most `most` worse than the second.

    The verdict is that of the paired difference's 95 % confidence interval: wholly within `most`, or wholly beyond it.
    """
    return at_most(*_paired(one, other), most, one.metric)


def at_most(first: Sequence[float], second: Sequence[float], most: float, name: str = "loss") -> Found:
    """Return means of a metric, paired by seed; see `no_worse`."""
    metric = METRICS[name]
    interval = stats.ttest_rel(first, second).confidence_interval()
    least_lost, most_lost = sorted(-metric.sign * end for end in interval)
    verdict = "held" if most_lost <= most else "did not hold" if least_lost > most else "not decided"
    low, high = (f"{end:+.{metric.digits}f}" for end in interval)
    return Found(f"{_against(first, second, metric)}, difference {low} to {high}", verdict)


class Metric(NamedTuple):
    """How a metric of training runs is judged and printed.

    Attributes:
        unit: Its unit.
        sign: 1.0 if higher is better, else -1.0.
        digits: Decimals.
        label: Axis of a plot.
    """

    unit: str
    sign: float
    digits: int
    label: str


METRICS = {
    "loss": Metric("nats", -1.0, 3, "Loss, nats per byte"),
    "bleu": Metric("BLEU", 1.0, 2, "BLEU"),
}
"""Metrics of grids by name."""


def _paired(one: Runs, other: Runs) -> tuple[list[float], list[float]]:
    first, second = one.values(), other.values()
    both = sorted(first.keys() & second.keys())
    return [first[seed] for seed in both], [second[seed] for seed in both]


def _against(first: Sequence[float], second: Sequence[float], metric: Metric) -> str:
    means = " against ".join(f"{np.mean(values):.{metric.digits}f}" for values in (first, second))
    return f"{means} {metric.unit} ({len(first)} seeds)"
