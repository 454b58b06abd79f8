"""Measurements of claims, with verdicts, from the raw results in docs/measurements/; `docs.claims` has the claims."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from headjax.training.grid import mean_interval

RAW = Path(__file__).parent / "measurements"


def saved_share(trial: Mapping[str, Any], original: Mapping[str, Any]) -> float:
    """Return the share of the cache that a conversion saves, in eighths: a latent keeps its position besides."""
    return round(8 * (1 - trial["cache"] / original["cache"])) / 8


def formulation(to: str) -> str:
    """Return a target of `headjax convert` without its size."""
    kind, _, fields = to.partition(":")
    left = [field for field in fields.split(",") if not re.fullmatch(r"(rank|shared_dim|kv_heads|head_dim)=\d+", field)]
    return ":".join([kind, *filter(None, [",".join(left)])])


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


def mean_and_interval(values: Sequence[float], digits: int = 2) -> str:
    """Return the mean and, in brackets, its 95 % interval (Student's t); of one value, the value."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    low, high = mean_interval(values)
    return estimate(float(np.mean(values)), low, high, digits)


def estimate(value: float, low: float, high: float, digits: int, sign: str = "") -> str:
    """Return a value and, in brackets, its interval; `sign` is "+" where plus is written, too."""
    told = [f"{0.0 + round(end, digits):{sign}.{digits}f}" for end in (value, low, high)]  # no -0.00
    return f"{told[0]} ({told[1]} to {told[2]})"


def ratio_and_interval(first: Sequence[float], second: Sequence[float], digits: int = 2) -> str:
    """Return the geometric mean of the ratios of paired positive values and, in brackets, its 95 % interval."""
    logarithms = np.log(first) - np.log(second)
    low, high = mean_interval(logarithms.tolist())
    value, low, high = np.exp((float(logarithms.mean()), low, high)).tolist()
    return estimate(value, low, high, digits)


def cells(found: Mapping[str, Any], order: str, remove: str, repair: str) -> list[Mapping[str, Any]]:
    """Return the trials of a cell, one for each draw of calibration examples."""
    named = {"order": order, "remove": remove, "repair": repair}
    return [trial for trial in found["removals"] if all(trial[key] == value for key, value in named.items())]


def models_of(found: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the models of raw results of removals or conversions: one, or several of different seeds."""
    return found.get("models", [found])


def loss(
    name: str, remove: str, repair: str, most: float, *, order: str = "reconstruction", points: int = 100
) -> Found:
    """Return the loss of the headline against the whole model; the claim is that it is at most `most`.

    Args:
        name: Raw results of removals.
        remove: Share of heads.
        repair: Repair of the kept heads.
        most: Greatest loss that the claim allows, in the headline's units.
        order: Order of removal.
        points: 100 to print points of accuracy, 1 for other metrics.
    """
    models = models_of(raw(name))
    return _lost(
        [[trial["against_whole"] for trial in cells(each, order, remove, repair)] for each in models], most, points
    )


def _lost(models: Sequence[Sequence[Mapping[str, Any]]], most: float, points: int = 100) -> Found:
    """Return the mean loss of several models, each by one or more tests of it; see `within`.

    The interval is that over models where there are several, else the mean one of the model's tests.
    """
    lost = [float(np.mean([-test["difference"] for test in tests])) for tests in models]
    if len(lost) > 1:
        low, high = mean_interval(lost)
        seen = f"{len(lost)} models"
    else:
        (tests,) = models
        low, high = (-float(np.mean([test[end] for test in tests])) for end in ("high", "low"))
        seen = f"p = {max(test['p_value'] for test in tests):.2g}"
        seen += f", mean of {len(tests)} draws" if len(tests) > 1 else ""
    unit, digits = (" points", 2) if points == 100 else ("", 4)
    told = estimate(points * float(np.mean(lost)), points * low, points * high, digits)
    return Found(f"{told}{unit} lost, {seen}", within(low, high, most))


def within(low: float, high: float, most: float) -> str:
    """Return the verdict of the claim that a value is at most `most`, by the value's 95 % interval."""
    return "held" if high <= most else "did not hold" if low > most else "not decided"


def removal_of(trial: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what was removed in a trial, and on which draw of calibration examples."""
    return trial["order"], trial["remove"], trial["draw"], tuple(trial["stacks"])


def repaired_and_bare(found: Mapping[str, Any], repair: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return the trials with a repair, each beside that of the same removal without one, where there is one."""
    pairs = []
    for model in models_of(found):
        bare = {removal_of(trial): trial for trial in model["removals"] if trial["repair"] == "none"}
        repaired = (trial for trial in model["removals"] if trial["repair"] == repair)
        pairs += [(trial, bare[removal_of(trial)]) for trial in repaired if removal_of(trial) in bare]
    return pairs


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
    (trial,) = cells(raw(name), "reconstruction", remove, "feed_forward")
    return _times(trial["against_whole"], "the whole model's perplexity", most)


def _times(test: Mapping[str, Any], what: str, most: float) -> Found:
    """Return how many times a perplexity is another one, from a paired test of the losses; see `within`."""
    ratio, low, high = (float(np.exp(test[key])) for key in ("difference", "low", "high"))
    return Found(f"{estimate(ratio, low, high, 3)} times {what}", within(low, high, most))


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
    (trial,) = _latents(name, saved, ours=True)
    return _times(trial["against_original"], "the original's perplexity", most)


def cache_against_others(name: str) -> Found:
    """Return at how many sizes the calibrated latent is below every other conversion of that size."""
    sizes = (0.25, 0.5, 0.75, 0.875)
    found = ([_latents(name, saved, ours=ours) for ours in (True, False)] for saved in sizes)
    won = sum(min(map(_perplexity, own)) < min(map(_perplexity, others)) for own, others in found)
    return Found(f"best at {won} of {len(sizes)} sizes", "held" if won == len(sizes) else "did not hold")


def _perplexity(trial: Mapping[str, Any]) -> float:
    return float(trial["metrics"]["perplexity"])


def _latents(name: str, saved: float, *, ours: bool) -> list[Mapping[str, Any]]:
    """Return the calibrated latents that save a share of the cache, or all other conversions; none was trained."""
    original, *trials = raw(name)["trials"]
    return [
        trial
        for trial in trials
        if (trial["to"].startswith("latent:rank") and trial["variant"] == "calibrated") is ours
        and trial["variant"] != "fine-tuned"
        and saved_share(trial, original) == saved
    ]


def conversion(name: str, to: str, variant: str, most: float, points: int = 100) -> Found:
    """Return what a conversion loses of the headline; the claim is that it is at most `most`. See `loss`."""
    models = [
        [trial["against_original"] for trial in each["trials"] if (trial["to"], trial["variant"]) == (to, variant)]
        for each in models_of(raw(name))
    ]
    return _lost(models, most, points)


def ranks_needed_heads(order: str) -> Found:
    """Return the AUROC of an order on models whose necessary heads are known."""
    rows = [row for row in raw("ground_truth_heads")["rows"] if row["order"] == order]
    values = [float(row["auroc"]) for row in rows]
    number = f"AUROC {mean_and_interval(values)}, lowest {min(values):.2f}, of {len(values)} models"
    return Found(number, "held" if min(values) > 0.9 else "did not hold")


def seeds(name: str, one: str, other: str) -> Found:
    """Return the means of two kinds of runs by seed; see `better`."""
    found = raw(name)
    first, second = ([float(value) for value in found["runs"][kind]] for kind in (one, other))
    both = min(len(first), len(second))
    return _better(first[:both], second[:both], METRICS[found["metric"]])


def grid_time(*names: str) -> str:
    """Return how many runs grids have, and how long they took together."""
    seconds = [run["seconds"] for name in names for run in raw(f"grid_{name}")["results"]]
    return f"{duration(sum(seconds))}, {len(seconds)} runs"


def removal_time(*names: str) -> str:
    """Return the processor time of the orders and repairs of sweeps over removals."""
    seconds = 0.0
    for name in names:
        for model in models_of(raw(name)):
            trials = model["removals"]
            orders = {(trial["order"], trial["draw"]): trial["order_seconds"] for trial in trials}
            seconds += sum(orders.values()) + sum(trial["repair_seconds"] for trial in trials)
    return f"{duration(seconds)} of orders and repairs"


def command_time(*names: str) -> str:
    """Return the time of the commands that wrote raw results."""
    seconds = [each for name in names for each in raw(name)["command_seconds"]]
    return duration(sum(seconds)) + (f", {len(seconds)} commands" if len(seconds) > 1 else "")


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes or hours."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


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
    return _better(*_paired(one, other), METRICS[one.metric])


def _better(first: Sequence[float], second: Sequence[float], metric: Metric) -> Found:
    test = stats.ttest_rel(first, second)
    gain = metric.sign * (np.mean(first) - np.mean(second))
    verdict = "not decided" if test.pvalue >= 0.05 else "held" if gain > 0 else "did not hold"
    return Found(f"{_against(first, second, metric)}, p = {test.pvalue:.2g}", verdict)


def no_worse(one: Runs, other: Runs, most: float) -> Found:
    """Return the means of two kinds of runs; the claim is that the first is at most `most` worse than the second.

    The verdict is that of the paired difference's 95 % confidence interval: wholly within `most`, or wholly beyond it.
    """
    return at_most(*_paired(one, other), most, one.metric)


def at_most(first: Sequence[float], second: Sequence[float], most: float, name: str = "loss") -> Found:
    """Return means of a metric, paired by seed; see `no_worse`."""
    metric = METRICS[name]
    interval = stats.ttest_rel(first, second).confidence_interval()
    least, greatest = sorted(-metric.sign * end for end in interval)
    return Found(_against(first, second, metric), within(least, greatest, most))


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
    """Return two means of values that are paired by seed, and their difference with its interval."""
    means = " against ".join(f"{np.mean(values):.{metric.digits}f}" for values in (first, second))
    gap = np.subtract(first, second)
    low, high = mean_interval(gap.tolist())
    ends = estimate(float(gap.mean()), low, high, metric.digits, sign="+")
    return f"{means} {metric.unit}, difference {ends}, {len(first)} seeds"
