"""Plots of RESULTS.md from the raw results, docs/measurements/NAME.png, described for those who do not see them.

python -m docs.tables       # draws them, and writes the descriptions
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from docs.composition import ORDERS, trials, values
from docs.design import BASELINE, EVERY, WINDOW, curves, model_of
from docs.measures import METRICS, RAW, raw, saved_share
from docs.stacks import perplexity_without
from headjax.report.curves import pruning_curves
from headjax.report.numbers import count, significant
from headjax.report.scatter import trade_off
from headjax.report.style import Plot

REPAIRS = {"none": "no repair", "rescale": "a scalar", "reconstruct": "W_O", "feed_forward": "W_O and feed-forward"}
"""Repairs by their names in the raw results and in plots."""

Series = Mapping[str, Sequence[tuple[float, float]]]


def removals(name: str, metric: str, title: str, orders: Sequence[str]) -> Plot:
    """Return a metric against the share of heads removed, one curve for each order and repair."""
    found = raw(name)
    headline = found["headline"]
    several = len(orders) > 1
    curves: dict[str, list[tuple[float, float]]] = {}
    for trial in found["removals"]:
        if trial["order"] in orders:
            order = f"{trial['order']}, " if several else ""
            points = curves.setdefault(f"{order}{REPAIRS[trial['repair']]}", [])
            points.append((_share(trial["remove"]), trial["metrics"][headline]))
    lower = headline in ("loss", "perplexity")
    return pruning_curves(
        curves,
        metric=metric,
        better="lower" if lower else "higher",
        baseline=found["baseline"][headline],
        title=title,
    )


def stacks(name: str, title: str) -> Plot:
    """Return the perplexity over the whole model's against the share of a stack's heads that is removed."""
    found = raw(name)
    trials = [trial for model in found["models"] for trial in model["removals"]]
    curves = {
        stack: [
            (_share(share), ratio)
            for share in dict.fromkeys(trial["remove"] for trial in trials)
            for ratio in perplexity_without(found, stack, share)
        ]
        for stack in dict.fromkeys(",".join(trial["stacks"]) for trial in trials)
    }
    return pruning_curves(curves, metric="Perplexity over the whole model's", baseline=1.0, title=title)


def caches(name: str, title: str, rows: Mapping[str, tuple[str, str]]) -> Plot:
    """Return the perplexity against the share of the cache that is saved, one line for each conversion."""
    original, *trials = raw(name)["trials"]
    series: dict[str, list[tuple[float, float]]] = {label: [] for label in rows}
    for label, (kind, variant) in rows.items():
        for trial in trials:
            if _without_size(trial["to"]) == kind and trial["variant"] == variant:
                point = (100 * saved_share(trial, original), trial["metrics"]["perplexity"])
                series[label].append(point)
    series["the original"] = [(0.0, original["metrics"]["perplexity"])]
    options: Any = {"cost": "Cache saved (%)", "cost_format": significant, "scale": "log"}
    return trade_off(series, metric="Perplexity per token", title=title, **options)


def sharing(name: str, title: str) -> Plot:
    """Return an encoder's accuracy against the size of its shared queries and keys."""
    original, *trials = raw(name)["trials"]
    series: dict[str, list[tuple[float, float]]] = {}
    for trial in trials:
        size = float(trial["to"].partition("shared_dim=")[2])
        series.setdefault(trial["variant"], []).append((size, trial["metrics"]["accuracy"]))
    largest = max(size for size, _ in series["plain"])
    series["the original"] = [(largest, original["metrics"]["accuracy"])]
    options: Any = {"cost": "Size of the shared queries and keys", "cost_format": count, "better": "higher"}
    return trade_off(series, metric="Accuracy", title=title, **options)


def grid(name: str, title: str, cost: str, kinds: Mapping[str, Mapping[str, str]], along: Mapping[str, float]) -> Plot:
    """Return the mean over the seeds of a grid against a cost.

    Args:
        name: of the grid's raw results.
        title: heading of the plot.
        cost: label of the horizontal axis.
        kinds: settings of the runs of each series, by label.
        along: settings that give the cost, with what a unit of each costs.
    """
    found = raw(f"grid_{name}")
    metric = METRICS[found["metric"]]
    series: dict[str, list[tuple[float, float]]] = {}
    for label, settings in kinds.items():
        measured: dict[float, list[float]] = {}
        for run in found["results"]:
            if settings.items() <= run["settings"].items() and run["diverged"] is None:
                x = sum(unit * float(run["settings"][setting]) for setting, unit in along.items())
                measured.setdefault(x, []).append(run["metrics"][found["metric"]])
        series[label] = [(x, _mean(each)) for x, each in measured.items()]
    options: Any = {"cost": cost, "cost_format": count, "better": "higher" if metric.sign > 0 else "lower"}
    return trade_off(series, metric=metric.label, title=title, **options)


def composition(name: str, title: str) -> Plot:
    """Return the perplexity against the parameters left, one line for each order of surgery."""
    found = raw(name)
    whole = values(found, "100", "whole", "parameters")[0]
    series: dict[str, list[tuple[float, float]]] = {label: [] for label in ORDERS.values()}
    for share, order in trials(found):
        parameters, after = (_mean(values(found, share, order, key)) for key in ("parameters", "after"))
        series[ORDERS[order]].append((100 * parameters / whole, after))
    options: Any = {"cost": "Parameters, % of the whole model's", "cost_format": significant}
    return trade_off(series, metric="Perplexity after fine-tuning", title=title, **options)


def design(name: str, title: str, kinds: Mapping[str, Mapping[str, str]]) -> Plot:
    """Return the mean loss over seeds against the time of training, one line for each kind of model."""
    found = raw(f"design_{name}")
    series: dict[str, list[tuple[float, float]]] = {}
    for label, settings in kinds.items():
        model = model_of(found, settings)
        runs = list(curves(model).values())
        apart = range(len(runs[0].losses) - 1, 0, -4 * WINDOW // EVERY)[
            ::-1
        ]  # the last one, and every 400 steps before
        series[label] = [
            (float(runs[0].steps[at]) * model["step"], _mean([float(run.losses[at]) for run in runs])) for at in apart
        ]
    options: Any = {"cost": "Seconds of training", "cost_format": significant}
    return trade_off(series, metric="Loss, nats per byte", title=title, **options)


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _share(text: str) -> float:
    return float(text.rstrip("%")) / 100


def _without_size(to: str) -> str:
    kind, _, fields = to.partition(":")
    sizes = ("rank=", "kv_heads=", "shared_dim=", "head_dim=")
    left = [field for field in fields.split(",") if field and not field.startswith(sizes)]
    return ":".join([kind, *([",".join(left)] if left else [])])


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
    "removals_sst2": partial(
        removals,
        "removals_sst2",
        "Accuracy on SST-2",
        "Heads of all-MiniLM-L6-v2 removed by reconstruction, by what is solved anew",
        ("reconstruction",),
    ),
    "removals_decoder_llama": partial(
        removals,
        "removals_decoder_llama",
        "Perplexity per token",
        "Heads of a Llama shape of 5.8 M parameters removed",
        ("reconstruction", "importance"),
    ),
    "stacks_translation": partial(stacks, "stacks_translation", "Translation: heads removed from one stack"),
    "conversions_llama": partial(
        caches, "conversions_llama", "A Llama shape of 5.8 M parameters with a smaller cache, not trained", CACHES
    ),
    "sharing_sst2": partial(
        sharing, "sharing_sst2", "all-MiniLM-L6-v2 with shared queries and keys, not trained again"
    ),
    "composition_translation": partial(
        composition, "composition_translation", "Translation: heads removed and keys shared, fine-tuned"
    ),
    "grid_keys_translation": partial(
        grid,
        "keys_translation",
        "Translation, trained from scratch: size of queries and keys",
        "Size of queries and keys, all heads together",
        {"concatenated heads": {"shared_dim": "0"}, "shared keys": {"head_dim": "0"}},
        {"head_dim": 8.0, "shared_dim": 1.0},
    ),
    "grid_deep_layers": partial(
        grid,
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
    "design_heads": partial(
        design,
        "heads",
        "Eight heads in one to eight layers, 125,000 parameters",
        {
            "1 layer of 8 heads": {"num_layers": "1"},
            "2 layers of 4 heads": BASELINE,
            "4 layers of 2 heads": {"num_layers": "4"},
            "8 layers of 1 head": {"num_layers": "8"},
        },
    ),
    "grid_head_shapes": partial(
        grid,
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
}
"""Plots by name."""


def markdown(name: str) -> str:
    """Return the picture of RESULTS.md."""
    return f"![{PLOTS[name]().alt}](docs/measurements/{name}.png)"


def draw() -> None:
    """Write all plots."""
    for name, plot in PLOTS.items():
        (RAW / f"{name}.png").write_bytes(plot().png(dpi=100))
