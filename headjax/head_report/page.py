"""The page that `headjax report` writes, and the parts of it that the page of a Flax model has, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from headjax.head_report.curves import CurvePoint, removable
from headjax.head_report.study import HeadStudy
from headjax.head_report.views import unit_of_changes
from headjax.heads.attended import ROLES
from headjax.heads.head_id import Values, all_heads
from headjax.plots import pruning_curves, score_map
from headjax.report import numbers
from headjax.report.page import Picture, Section, write_page
from headjax.report.tables import Column, Table
from headjax.version import __version__

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

POINT = 0.01
"""Loss that does not count: one point of a metric between 0 and 1."""

RELATIVE = 0.05
"""Loss that counts as none for other metrics, as a share of the baseline."""

TITLE = "Which heads matter"


def write_report(study: HeadStudy, path: str | Path) -> Path:
    """Write the study's measurements as one HTML page."""
    drop, headline = tolerance(study), study.task.headline
    summary = (
        f"{len(all_heads(study.model.config))} heads in {numbers.count(study.model.num_parameters)} parameters, "
        f"measured on {study.task.count():,} examples of {study.task.name}, {study.task.split}. Heads are removed by "
        f"gates, without any training afterwards, in orders found on {study.ordered_by}."
    )
    facts = {f"{headline}, all heads": numbers.significant(study.baseline[headline])}
    best = max(study.curves, key=lambda name: _removable(study, study.curves[name], drop))
    for name in dict.fromkeys((next(iter(study.curves)), best, "random")):
        if name in study.curves:
            share = _removable(study, study.curves[name], drop)
            facts[f"of the heads can go, by {name}"] = numbers.percent(share)
    sections = (
        _pruning(study, drop),
        score_section(study.model, study.scores),
        _single(study),
        _roles(study),
        _attention(study),
    )
    return write_page(path, TITLE, summary, sections, footer(study.seconds), facts)


def footer(seconds: float) -> str:
    """Return how a page was made."""
    return f"headjax {__version__}, jax {jax.__version__}, {numbers.duration(seconds)} in all."


def tolerance(study: HeadStudy) -> float:
    """Return the loss of the headline that does not count: one point, or 5 % of a headline that is not a share."""
    return POINT if _is_share(study) else RELATIVE * abs(study.baseline[study.task.headline])


def _is_share(study: HeadStudy) -> bool:
    """Whether the headline is a share such as an accuracy, which changes by points."""
    return study.task.higher_is_better and study.baseline[study.task.headline] <= 1.0


def _removable(study: HeadStudy, points: Sequence[CurvePoint], drop: float) -> float:
    return removable(points, study.baseline[study.task.headline], drop, study.task.higher_is_better)


def score_section(model: Any, scores: Mapping[str, Values]) -> Section:
    """Return the scores of `MAPS` that there are as maps."""
    pictures = [
        Picture(score_map(model, scores[name], title=title, unit=unit), caption)
        for name, (title, unit, caption) in MAPS.items()
        if name in scores
    ]
    return Section("What the scores say", "One pass over the examples gives every score.", tuple(pictures))


def _pruning(study: HeadStudy, drop: float) -> Section:
    """Return the headline against the share of heads removed, for every order."""
    caption = (
        f"Heads gated off in each order, without training afterwards. Lines are means of {study.config.seeds} seeds, "
        "bands reach from the worst to the best: a seed draws the examples that heads are ordered by."
    )
    if any(name.endswith("+reconstruct") for name in study.curves):
        caption += " `+reconstruct` refits the output projections of the kept heads on them, without labels."
    task, baseline = study.task, study.baseline[study.task.headline]
    name = task.headline.replace("_", " ").capitalize()
    plot = pruning_curves(
        with_whole(study.curves, baseline),
        metric=name,
        better="higher" if task.higher_is_better else "lower",
        baseline=baseline,
        scale="log" if task.headline == "perplexity" else "linear",
        title=f"{name} against heads removed",
    )
    return Section("Removing heads", "", (Picture(plot, caption),), curve_table(study, drop))


def with_whole(curves: Mapping[str, Sequence[CurvePoint]], baseline: float) -> dict[str, list[tuple[float, float]]]:
    """Return curves as pairs of the share of heads removed and the value, from all heads on."""
    return {
        name: [(0.0, baseline), *((point.fraction, point.value) for point in points)] for name, points in curves.items()
    }


def curve_table(study: HeadStudy, drop: float) -> Table:
    """Return the headline along every curve, and how many heads can go."""
    percentages = study.config.percentages
    shown = percentages if len(percentages) <= 6 else percentages[1::2]
    rows = []
    for name, points in study.curves.items():
        means = [float(np.mean([p.value for p in points if p.fraction == share / 100.0])) for share in shown]
        rows.append((name, _removable(study, points, drop), *means))
    better: Any = "higher" if study.task.higher_is_better else "lower"
    columns = (
        Column("Order"),
        Column("Removable", numbers.percent, "higher"),
        *(Column(f"{share}% gone", numbers.significant, better) for share in shown),
    )
    note = (
        f"{study.task.headline}, means of {study.config.seeds} seeds. Removable: the largest share of heads up to "
        f"which every share measured costs at most {numbers.significant(drop)}."
    )
    return Table(columns, rows, notes=(note,))


def _single(study: HeadStudy) -> Section:
    effects = study.effects["each"]
    scale, unit = (100.0, "points") if _is_share(study) else (1.0, effects.metric)
    changes = {head: scale * change for head, change in effects.effects().items()}
    title = f"Change of {effects.metric} without the head"
    plot = score_map(study.model, changes, title=title, unit=f"Change, {unit}")
    worse = sum(comparison.p_value < 0.01 for comparison in effects.comparisons.values())
    caption = (
        f"Every head removed alone, on {study.few.count():,} of the examples. {worse} of {len(changes)} changes are "
        f"significant at p < 0.01 ({effects.test})."
    )
    return Section("One head less, one head left", "", (Picture(plot, caption),), best_head_table(study))


def best_head_table(study: HeadStudy) -> Table:
    """Return for every layer the head that stands in best for all of it (Michel et al. 2019, tables 2 and 3)."""
    found = study.effects["all-but-one"]
    effects = found.effects()
    rows = [(head.stack, head.layer, head.head, effects[head], found.comparisons[head].p_value) for head in study.best]
    columns = (
        Column("Stack"),
        Column("Layer", numbers.count),
        Column("Best head", numbers.count),
        Column(f"Change of {found.metric}, only this head left", numbers.significant),
        Column("p", numbers.significant),
    )
    note = f"{found.test}. The head with the least loss on the selection examples is chosen."
    return Table(columns, rows, title="The best single head of every layer", notes=(note,))


def _roles(study: HeadStudy) -> Section:
    named = {head: found for head, found in study.roles.items() if found.role is not None}
    counts = ", ".join(f"{sum(found.role == role for found in named.values())} {role}" for role in ROLES)
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
        Column("Rank by importance_layer", numbers.count),
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
