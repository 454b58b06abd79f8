"""The page that `headjax report` writes, its first line, and the parts that the page of a Flax model has, too.

The first line says how many heads can go, what that saves, what it costs, and the command that does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from headjax.core import numbers
from headjax.evaluation.paired import Comparison
from headjax.head_report.study import WORDS, CurveConfig, CurvePoint, HeadStudy, removable
from headjax.head_report.views import unit_of_changes
from headjax.heads.head_id import Values, all_heads
from headjax.heads.pruning import prune
from headjax.heads.scoring import ROLES
from headjax.models.model import Model
from headjax.plots import score_map
from headjax.report.curves import pruning_curves
from headjax.report.page import Picture, Section, render_page, write_page
from headjax.report.tables import Column, Table
from headjax.version import __version__

POINT = 0.01
"""Loss that does not count: one point of a metric between 0 and 1."""

RELATIVE = 0.05
"""Loss that counts as none for other metrics, as a share of the baseline."""

Milliseconds = Mapping[str, float | None]  # of a forward pass, by the number of examples
Timer = Callable[[Sequence[Model]], tuple[Milliseconds, ...]]


class Answer(NamedTuple):
    """The recommended order, by name and as settings; its largest removal within the tolerance; all of it in words."""

    name: str
    order: CurveConfig
    point: CurvePoint | None
    text: str


def answer(
    study: HeadStudy, model_name: str = "MODEL", task_name: str = "TASK", timer: Timer = lambda models: ({}, {})
) -> Answer:
    """Return the largest removal that any order makes at a loss within the tolerance, with the model's times."""
    points = {name: largest(study, name) for name in study.curves}
    name = max(points, key=lambda name: 0.0 if (point := points[name]) is None else point.fraction)
    order, point, task = CurveConfig.parse(name), points[name], study.task
    few = too_few(study)
    if point is None:
        cost = few or f"no order removes the first {study.config.percentages[0]}% at a loss of at most {allowed(study)}"
        return Answer(name, order, None, f"No removal is recommended: {cost}.")
    metric, before = task.primary_metric.replace("_", " "), study.baseline[task.primary_metric]
    smaller = prune(study.model, point.heads)
    parameters = " to ".join(map(numbers.count, (study.model.num_parameters, smaller.num_parameters)))
    text = (
        f"Remove {point.removed} of {len(all_heads(study.model.config))} heads: {parameters} parameters, "
        f"{times(*timer((study.model, smaller)))}{metric} "
        f"{numbers.significant(before)} to {numbers.significant(point.value)} on {task.count():,} examples"
    )
    refit = " --reconstruct" if order.reconstruct else ""
    command = f"headjax prune {model_name} OUT --remove {point.removed} --by {order.order.by}{refit} --task {task_name}"
    doubt = few or _doubt(study, point.change)
    doubt = f" {doubt[0].upper()}{doubt[1:]}." if doubt else ""
    return Answer(name, order, point, f"{text}{interval(study, point.change)}.{doubt}\n\n`{command}`")


def largest(study: HeadStudy, name: str) -> CurvePoint | None:
    """Return the first seed's point of the largest share of heads that an order removes within the tolerance."""
    points = study.curves[name]
    share = removable(points, study.baseline[study.task.primary_metric], tolerance(study), study.task.higher_is_better)
    return next((point for point in points if point.fraction == share), None)


def tolerance(study: HeadStudy) -> float:
    """Return the loss of the primary metric that does not count: one point, or 5 % of one that is not a share."""
    return POINT if is_share(study) else RELATIVE * abs(study.baseline[study.task.primary_metric])


def allowed(study: HeadStudy) -> str:
    """Return the tolerance in words."""
    return "one point" if is_share(study) else f"{RELATIVE:.0%} of the {study.task.primary_metric}"


def is_share(study: HeadStudy) -> bool:
    """Whether the primary metric is a share such as an accuracy, which changes by points."""
    return study.task.higher_is_better and study.baseline[study.task.primary_metric] <= 1.0


def too_few(study: HeadStudy) -> str:
    """Return why the examples cannot show the tolerance at all, where a single one weighs more."""
    needed, count = round(1 / POINT), study.task.count()
    if study.task.measure.kind != "binary" or count >= needed:
        return ""
    return f"one of {count} examples is more than one point, so judge at least {needed} (`--judged`)"


def times(before: Milliseconds, after: Milliseconds) -> str:
    """Return the times of the largest batch that was timed, in words."""
    pairs = {size: (time, after[size]) for size, time in before.items()}
    known = {size: pair for size, pair in pairs.items() if all(pair)}
    if not known:
        return ""
    size, (old, new) = list(known.items())[-1]
    return f"{numbers.significant(old)} to {numbers.significant(new)} ms for {size} examples, "


def _doubt(study: HeadStudy, change: Comparison | None) -> str:
    """Return a warning where the interval reaches losses above the tolerance."""
    if change is None:
        return ""
    worst = -change.low if study.task.higher_is_better else change.high
    if study.task.measure.kind == "sum" and study.task.primary_metric != "loss":
        worst = np.expm1(change.high) * study.baseline[study.task.primary_metric]  # the interval is in nats
    return "" if worst <= tolerance(study) else f"too few examples to exclude a loss of {allowed(study)}"


def interval(study: HeadStudy, change: Comparison | None) -> str:
    """Return the interval of a change in brackets."""
    if change is None:
        return ""
    scale, unit = (100.0, " points") if is_share(study) else (1.0, "")
    unit = " nats of the loss" if study.task.measure.kind == "sum" else unit
    low, high = (numbers.significant(scale * end) for end in (change.low, change.high))
    return f" (95% interval of the change: {low} to {high}{unit})"


MAPS = {
    "importance": ("Importance", "|dL/dξ|", "Mean over examples of |dL/dξ|: Michel et al. 2019, equation 2."),
    "normalized_entropy": (
        "Attention entropy",
        "Share of the largest possible",
        "Entropy of the attention over that of attending to all keys alike: 0 looks at one key, 1 at all.",
    ),
    "distance": ("Attention distance", "Tokens", "Mean distance between a query and the keys it attends to."),
}
"""Scores that are drawn where a model has them: title, unit, caption."""

TITLE = "Which heads matter"


def write_report(study: HeadStudy, best: Answer, path: str | Path) -> Path:
    """Write the study's measurements as one HTML page that opens with an answer."""
    task = study.task
    summary = (
        f"{best.text}\n\nMeasured on {task.count():,} examples of {task.name}, {task.split}. Heads are removed by "
        f"gates and nothing is trained; orders are found on {study.ordered_by}."
    )
    facts = {
        f"{task.primary_metric}, all heads, {task.count():,} examples": numbers.significant(
            study.baseline[task.primary_metric]
        )
    }
    for name in dict.fromkeys((best.name, "random")):
        if name in study.curves and not too_few(study):
            point = largest(study, name)
            words = CurveConfig.parse(name).words
            interval_text = "" if point is None else interval(study, point.change)
            facts[f"of the heads can go by {words} at {allowed(study)}, {task.count():,} examples{interval_text}"] = (
                numbers.percent(0.0 if point is None else point.fraction)
            )
    sections = (_pruning(study, best), _maps(study), _roles(study), _attention(study))
    return write_page(path, render_page(TITLE, summary, sections, footer(study.seconds), facts))


def footer(seconds: float) -> str:
    """Return how a page was made."""
    return f"headjax {__version__}, jax {jax.__version__}, {numbers.duration(seconds)} in all."


def score_maps(scores: Mapping[str, Values]) -> tuple[Picture, ...]:
    """Return the scores of `MAPS` that there are as maps, of which a menu shows one."""
    return tuple(
        Picture(score_map(None, scores[name], title=title, unit=unit), f"{_ends(scores[name])} {caption}", title)
        for name, (title, unit, caption) in MAPS.items()
        if name in scores
    )


def _ends(values: Values) -> str:
    """Return where a score is highest and lowest."""
    ordered = sorted((head for head in values if np.isfinite(values[head])), key=lambda head: values[head])
    if not ordered:
        return ""
    named = [f"`{head}` ({numbers.significant(values[head])})" for head in (ordered[-1], ordered[0])]
    return f"Highest in {named[0]}, lowest in {named[1]}."


def _maps(study: HeadStudy) -> Section:
    """Return the maps of all scores, and of every head removed alone."""
    effects = study.effects
    scale, unit = (100.0, "points") if is_share(study) else (1.0, effects.metric)
    changes = {head: scale * change for head, change in effects.effects().items()}
    title = f"Change of {effects.metric} without the head"
    worse = sum(comparison.p_value < 0.01 for comparison in effects.comparisons.values())
    caption = (
        f"{worse} of {len(changes)} heads change the {effects.metric} significantly when removed alone (p < 0.01, "
        f"{effects.test}, {study.few.count():,} of the examples)."
    )
    alone = Picture(score_map(study.model, changes, title=title, unit=f"Change, {unit}"), caption, title)
    text = "One pass over the examples gives every score; the last map is measured by removing each head alone."
    return Section("What the scores say", text, (*score_maps(study.scores), alone))


def _pruning(study: HeadStudy, best: Answer) -> Section:
    """Return the primary metric against the share of heads removed, for every order."""
    share = 0.0 if best.point is None else best.point.fraction
    caption = (
        f"By {best.order.words}, {numbers.percent(share)} of the heads go at a loss of at most {allowed(study)}. Heads "
        f"are gated off in each order, without training afterwards. Lines are means over {study.config.seeds} seed(s), "
        "bands reach from the worst to the best: a seed draws the examples that heads are ordered by."
    )
    if any(CurveConfig.parse(name).reconstruct for name in study.curves):
        caption += " Refitted: the output projections of the kept heads are fitted to those examples, without labels."
    task, baseline = study.task, study.baseline[study.task.primary_metric]
    name = task.primary_metric.replace("_", " ").capitalize()
    plot = pruning_curves(
        {CurveConfig.parse(order).words: points for order, points in with_whole(study.curves, baseline).items()},
        metric=name,
        better="higher" if task.higher_is_better else "lower",
        baseline=baseline,
        scale="log" if task.primary_metric == "perplexity" else "linear",
        title=f"{name} against heads removed",
    )
    return Section("Removing heads", "", (Picture(plot, caption),), curve_table(study))


def with_whole(curves: Mapping[str, Sequence[CurvePoint]], baseline: float) -> dict[str, list[tuple[float, float]]]:
    """Return curves as pairs of the share of heads removed and the value, from all heads on."""
    return {
        name: [(0.0, baseline), *((point.fraction, point.value) for point in points)] for name, points in curves.items()
    }


def curve_table(study: HeadStudy) -> Table:
    """Return the primary metric along every curve, and how many heads can go."""
    percentages = study.config.percentages
    shown = percentages if len(percentages) <= 6 else percentages[1::2]
    rows = []
    for name, points in study.curves.items():
        means = [float(np.mean([p.value for p in points if p.fraction == share / 100.0])) for share in shown]
        share = 0.0 if (point := largest(study, name)) is None else point.fraction
        rows.append((CurveConfig.parse(name).words, share, *means))
    better: Any = "higher" if study.task.higher_is_better else "lower"
    columns = (
        Column("Order"),
        Column("Removable", numbers.percent, "higher"),
        *(Column(f"{share}% gone", numbers.significant, better) for share in shown),
    )
    note = (
        f"{study.task.primary_metric}, means over {study.config.seeds} seed(s). Removable: the largest share of heads "
        f"up to which every share measured costs at most {allowed(study)}."
    )
    return Table(columns, rows, notes=(note,))


def _roles(study: HeadStudy) -> Section:
    named = {head: role_of for head, role_of in study.roles.items() if role_of.role is not None}
    counts = ", ".join(f"{sum(role_of.role == role for role_of in named.values())} {role}" for role in ROLES)
    text = (
        f"Heads whose largest weight is on one relative position in at least 90 % of cases: {counts}; "
        f"{len(study.roles) - len(named)} of {len(study.roles)} have no such role (Voita et al. 2019, section 5.1)."
    )
    importance = study.scores["importance_layer"]
    places = {head: place for place, head in enumerate(sorted(importance, key=lambda h: -importance[h]), start=1)}
    strongest = sorted(study.roles, key=lambda head: -np.nanmax(list(study.roles[head].shares.values())))[:10]
    rows = [
        (str(head), study.roles[head].role or "", *study.roles[head].shares.values(), places[head])
        for head in strongest
    ]
    columns = (
        Column("Head"),
        Column("Role"),
        *(Column(role, numbers.percent) for role in ROLES),
        Column(f"Rank by {WORDS['importance_layer']}", numbers.count),
    )
    note = "Share of queries whose largest weight is there; the ten heads with the largest share."
    return Section("What heads look at", text, (), Table(columns, rows, notes=(note,)))


def _attention(study: HeadStudy) -> Section:
    text = (
        "Each small picture is a head: a row for each token that attends, a column for each token that it attends to. "
        "The bar below is the head's importance as a share of its layer's. Choose a head with a click or the arrow "
        "keys, and switch it off to see the prediction without it. Predictions are stored with one head or one layer "
        "off, not with other sets."
    )
    importance = {str(head): float(value) for head, value in study.scores["importance_layer"].items()}
    data = {"importance": importance, "unit": unit_of_changes(study.model.config), "examples": study.views}
    return Section("What each head attends to", text, viewer=data)
