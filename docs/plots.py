"""Plots of raw results; `docs.plot_list` has those of RESULTS.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from docs.composition import ORDERS, trials, values
from docs.design import EVERY, WINDOW, curves, model_of
from docs.measures import METRICS, formulation, models_of, raw, saved_share
from docs.stacks import effects, perplexity_without
from headjax.report.curves import line_plot, pruning_curves
from headjax.report.numbers import count, significant
from headjax.report.scatter import importance_transfer, trade_off
from headjax.report.style import WIDTH, Plot, finished, look, new_figure, style, wrap

REPAIRS = {"none": "no repair", "rescale": "a scalar", "reconstruct": "W_O", "feed_forward": "W_O and feed-forward"}
"""Repairs by their names in the raw results and in plots."""

Series = Mapping[str, Sequence[tuple[float, float]]]


def removals(name: str, metric: str, title: str, orders: Sequence[str]) -> Plot:
    """Return a metric against the share of heads removed, one curve for each order and repair."""
    found = raw(name)
    headline = found["headline"]
    several = len(orders) > 1
    curves: dict[str, list[tuple[float, float]]] = {}
    for trial in (trial for model in models_of(found) for trial in model["removals"]):
        if trial["order"] in orders:
            order = f"{trial['order']}, " if several else ""
            points = curves.setdefault(f"{order}{REPAIRS[trial['repair']]}", [])
            points.append((_share(trial["remove"]), trial["metrics"][headline]))
    lower = headline in ("loss", "perplexity")
    return pruning_curves(
        curves,
        metric=metric,
        better="lower" if lower else "higher",
        baseline=_mean([model["baseline"][headline] for model in models_of(found)]),
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
            if formulation(trial["to"]) == kind and trial["variant"] == variant:
                point = (100 * saved_share(trial, original), trial["metrics"]["perplexity"])
                series[label].append(point)
    series["the original"] = [(0.0, original["metrics"]["perplexity"])]
    options: Any = {"cost": "Cache saved (%)", "cost_format": significant, "scale": "log"}
    return trade_off(series, metric="Perplexity per token", title=title, **options)


def sharing(name: str, title: str, whole: int = 384) -> Plot:
    """Return an encoder's headline against the size of its shared queries and keys, `whole` before; mean of models."""
    found = raw(name)
    headline = found["headline"]
    values: dict[str, dict[float, list[float]]] = {}
    originals = []
    for original, *converted in (model["trials"] for model in models_of(found)):
        originals.append(original["metrics"][headline])
        for trial in converted:
            size = float(trial["to"].partition("shared_dim=")[2])
            values.setdefault(trial["variant"], {}).setdefault(size, []).append(trial["metrics"][headline])
    series = {variant: [(size, _mean(each)) for size, each in sizes.items()] for variant, sizes in values.items()}
    series["the original"] = [(float(whole), _mean(originals))]
    options: Any = {"cost": "Size of the shared queries and keys", "cost_format": count, "better": "higher"}
    return trade_off(series, metric=headline.capitalize(), title=title, **options)


def single_heads(name: str, title: str, mode: str) -> Plot:
    """Return the cost of each head, or of all others of its layer, from the cheapest to the dearest of a stack."""
    found = raw(name)
    costs: dict[str, list[float]] = {}
    for effect in (effect for model in effects(found, mode) for effect in model):
        costs.setdefault(effect.stack, []).append(effect.cost)
    curves = {
        stack: [(100 * (place + 0.5) / len(each), cost) for place, cost in enumerate(sorted(each))]
        for stack, each in costs.items()
    }
    metric = found["metric"]
    label = "Perplexity over the whole model's" if metric == "perplexity" else f"Points of {metric} lost"
    return line_plot(curves, title=title, x_label="Heads from the cheapest on, %", y_label=label)


def transfer(name: str, title: str, other: str, x_label: str, y_label: str) -> Plot:
    """Return the effect of every head's removal on two data sets, all models together."""
    values: dict[str, tuple[list[float], list[float]]] = {}
    for model in raw(name)["models"]:
        own, elsewhere = next(iter(model.values()))["ratios"], model[other]["ratios"]
        for head, ratio in own.items():
            first, second = values.setdefault(head.partition("/")[0], ([], []))
            first.append(ratio)
            second.append(elsewhere[head])
    return importance_transfer(values, x_label=x_label, y_label=y_label, title=title)


def training(name: str, title: str) -> Plot:
    """Return how the order of heads at a checkpoint agrees with that of the finished model, along training."""
    points = [(float(step), at["agreement"]) for model in raw(name)["models"] for step, at in model.items()]
    label = "Spearman's correlation with the finished model's"
    return line_plot({"importance": points}, title=title, x_label="Training step", y_label=label)


def patterns(name: str, title: str) -> Plot:
    """Return the divergence between random patterns and the attention that fits them, by the size of a head."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in raw(name)["rows"]:
        each = [(float(row["size"]), max(divergence, 1e-7)) for divergence in row["kl"]]
        curves.setdefault(f"{row['pattern']} patterns", []).extend(each)
    label = "KL divergence, nats a token"
    return line_plot(curves, title=title, x_label="Head size", y_label=label, scale="log")


def dots(rows: Mapping[str, Sequence[float]], label: str, title: str) -> Plot:
    """Return one row a name, with a point for each of its values and a line at their mean."""
    with style():
        figure = new_figure(height=1.5 + 0.32 * len(rows))
        figure.suptitle(wrap(title, WIDTH), x=0.02, ha="left", fontweight="bold", fontsize=13)
        axes = figure.add_subplot(xlabel=label)
        for place, values in enumerate(rows.values()):
            axes.plot(values, [place] * len(values), color=look(0).color, marker="o", linestyle="none", alpha=0.6)
            axes.plot(_mean(values), place, color=look(1).color, marker="|", markersize=15, markeredgewidth=2.5)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.margins(x=0.06)
    said = "; ".join(f"{name} {significant(_mean(values))}" for name, values in rows.items())
    return finished(figure, f"{title}: {label}, means: {said}.")


def ground_truth(title: str, orders: Sequence[str]) -> Plot:
    """Return how well orders rank the heads that models need, one point for each setting."""
    rows: dict[str, dict[str, list[float]]] = {order: {} for order in orders}
    for row in raw("ground_truth_heads")["rows"]:
        if row["order"] in rows:
            rows[row["order"]].setdefault(row["setting"], []).append(row["auroc"])
    means = {order: [_mean(each) for each in settings.values()] for order, settings in rows.items()}
    return dots(means, "AUROC, a point a kind of model", title)


def seeds(name: str, title: str) -> Plot:
    """Return the metric of every kind of runs, one point a seed."""
    found = raw(name)
    return dots(found["runs"], METRICS[found["metric"]].label, title)


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
