"""Sections of the page that `headjax report` writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from headjax.evaluation.task import Task
from headjax.head_report.curves import CurvePoint, removable
from headjax.head_report.study import HeadStudy, scored
from headjax.head_report.views import unit_of_changes
from headjax.heads.attended import ROLES
from headjax.heads.head_id import all_heads
from headjax.heads.ordering import compared
from headjax.plots import score_map
from headjax.report import numbers
from headjax.report.curves import Points
from headjax.report.page import Picture, Section, write_page
from headjax.report.presets import importance_transfer, pruning_curves
from headjax.report.style import Plot
from headjax.report.tables import Column, Table
from headjax.version import __version__

MAPS = {
    "importance": ("Importance", "|dL/dξ| (nats)", "Mean over examples of |dL/dξ|: Michel et al. 2019, equation 2."),
    "normalized_entropy": (
        "Attention entropy",
        "Share of the largest possible",
        "Entropy of the attention over that of attending to all keys alike: 0 looks at one key, 1 at all.",
    ),
    "distance": ("Attention distance", "Tokens", "Mean distance between a query and the keys it attends to."),
}
"""Scores that are drawn: title, unit, caption."""

POINT = 0.01
"""Loss that does not count: one point of a metric between 0 and 1."""

RELATIVE = 0.05
"""Loss that counts as none for other metrics, as a share of the baseline."""


def write_report(study: HeadStudy, path: str | Path, shown: dict[str, Section] | None = None) -> Path:
    """Write the study's measurements as one HTML page.

    Args:
        study: the study, complete or not.
        path: file of the page.
        shown: sections that have been drawn for an earlier page of the same study; new ones are added.
    """
    shown = {} if shown is None else shown
    drop, headline = tolerance(study), study.task.headline
    summary = (
        f"{len(all_heads(study.model.config))} heads in {numbers.count(study.model.num_parameters)} parameters, "
        f"measured on {study.examples:,} examples of {study.task.name}, {study.task.split}. Heads are removed by "
        f"gates, without any training afterwards, in orders found on {study.ordered_by}."
    )
    if not study.roles:
        summary += "\n\nThis page is being written: sections appear as their measurements end."
    facts = {f"{headline}, all heads": numbers.significant(study.baseline[headline])}
    facts |= {
        f"of the heads can go, by {name}": numbers.percent(_removable(study, points, drop))
        for name, points in _headline_curves(study, drop)
    }
    # A section that is drawn from something else now, such as one more curve, is drawn again.
    builders: dict[str, tuple[Any, Callable[[], Section]]] = {
        "pruning": (
            len(study.curves),
            lambda: Section("Removing heads", "", (pruning_picture(study),), curve_table(study, drop)),
        ),
        "importance": (len(study.scores), lambda: _importance(study)),
        "single": (len(study.best), lambda: _single(study)),
        "transfer": (study.second is not None, lambda: _transfer(study)),
        "training": (len(study.snapshots), lambda: _training(study)),
        "roles": (len(study.roles), lambda: _roles(study)),
        "attention": (len(study.views), lambda: _attention(study)),
    }
    sections = []
    for name, (drawn_from, build) in builders.items():
        if drawn_from:
            key = f"{name} {drawn_from}"
            if key not in shown:
                shown[key] = build()
            sections.append(shown[key])
    footer = f"headjax {__version__}, jax {jax.__version__}, {numbers.duration(study.seconds)} in all."
    return write_page(path, "Which heads matter", summary, sections, footer, facts)


def tolerance(study: HeadStudy) -> float:
    """Return the loss of the headline that does not count: one point, or 5 % of a headline that is not a share."""
    return POINT if _is_share(study) else RELATIVE * abs(study.baseline[study.task.headline])


def _is_share(study: HeadStudy) -> bool:
    """Whether the headline is a share such as an accuracy, which changes by points."""
    return study.task.higher_is_better and study.baseline[study.task.headline] <= 1.0


def _removable(study: HeadStudy, points: Sequence[CurvePoint], drop: float) -> float:
    return removable(points, study.baseline[study.task.headline], drop, study.task.higher_is_better)


def _headline_curves(study: HeadStudy, drop: float) -> list[tuple[str, Sequence[CurvePoint]]]:
    """Return the curves of the headline: the first, which is reconstruction by default, the best, and the random."""
    if not study.curves:
        return []
    best = max(study.curves, key=lambda name: _removable(study, study.curves[name], drop))
    names = dict.fromkeys((next(iter(study.curves)), best, "random"))
    return [(name, study.curves[name]) for name in names if name in study.curves]


def _importance(study: HeadStudy) -> Section:
    text = f"One pass over {scored(study.selection, study.config):,} selection examples gives every score."
    return Section("What the scores say", text, tuple(score_picture(study, name) for name in MAPS))


def score_picture(study: HeadStudy, name: str) -> Picture:
    """Return one score of every head as a map; pointed at, a head tells all its scores."""
    title, unit, caption = MAPS[name]
    more = {other: values for other, values in study.scores.items() if other != name}
    return Picture(score_map(study.model, study.scores[name], title=title, unit=unit, more=more), caption)


def _single(study: HeadStudy) -> Section:
    effects = study.effects["each"]
    scale, unit = (100.0, "points") if _is_share(study) else (1.0, effects.metric)
    changes = {head: scale * change for head, change in effects.effect.items()}
    title = f"Change of {effects.metric} without the head"
    plot = score_map(study.model, changes, title=title, unit=f"Change, {unit}")
    worse = sum(p_value < 0.01 for p_value in effects.p_value.values())
    caption = (
        f"Every head removed alone, on {study.few.count():,} of the examples. {worse} of {len(changes)} changes are "
        f"significant at p < 0.01 ({effects.test})."
    )
    return Section("One head less, one head left", "", (Picture(plot, caption),), best_head_table(study))


def best_head_table(study: HeadStudy) -> Table:
    """For every layer the head that stands in best for all of it (Michel et al. 2019, tables 2 and 3)."""
    effects = study.effects["all-but-one"]
    rows = [(head.stack, head.layer, head.head, effects.effect[head], effects.p_value[head]) for head in study.best]
    return Table(
        (
            Column("Stack"),
            Column("Layer", numbers.count),
            Column("Best head", numbers.count),
            Column(f"Change of {effects.metric}, only this head left", numbers.significant),
            Column("p", numbers.significant),
        ),
        rows,
        title="The best single head of every layer",
        notes=(f"{effects.test}. The head with the least loss on the selection examples is chosen.",),
    )


def pruning_picture(study: HeadStudy) -> Picture:
    """Return the headline against the share of heads removed, for every order."""
    baseline = study.baseline[study.task.headline]
    caption = (
        f"Heads gated off in each order, without training afterwards. Lines are means of {study.config.seeds} seeds, "
        "bands reach from the worst to the best: a seed draws the examples that heads are ordered by."
    )
    if any(name.endswith("+reconstruct") for name in study.curves):
        caption += " `+reconstruct` refits the output projections of the kept heads on them, without labels."
    curves = {name: [(0.0, baseline), *_pairs(points)] for name, points in study.curves.items()}
    return Picture(_removal_plot(study.task, curves, baseline), caption)


def _pairs(points: Sequence[CurvePoint]) -> list[tuple[float, float]]:
    return [(point.fraction, point.value) for point in points]


def _removal_plot(task: Task, curves: Mapping[str, Points], baseline: float | None = None) -> Plot:
    name = task.headline.replace("_", " ").capitalize()
    return pruning_curves(
        curves,
        metric=name,
        better="higher" if task.higher_is_better else "lower",
        baseline=baseline,
        scale="log" if task.headline == "perplexity" else "linear",
        title=f"{name} against heads removed",
    )


def curve_table(study: HeadStudy, drop: float) -> Table:
    """The headline along every curve, and how many heads can go."""
    percentages = study.config.percentages
    shown = percentages if len(percentages) <= 6 else percentages[1::2]
    rows = []
    for name, points in study.curves.items():
        means = [float(np.mean([p.value for p in points if p.fraction == share / 100.0])) for share in shown]
        rows.append((name, _removable(study, points, drop), *means))
    better: Any = "higher" if study.task.higher_is_better else "lower"
    return Table(
        (
            Column("Order"),
            Column("Removable", numbers.percent, "higher"),
            *(Column(f"{share}% gone", numbers.significant, better) for share in shown),
        ),
        rows,
        notes=(
            f"{study.task.headline}, means of {study.config.seeds} seeds. Removable: the largest share of heads up to "
            f"which every share measured costs at most {numbers.significant(drop)}.",
        ),
    )


def _transfer(study: HeadStudy) -> Section:
    name, found = study.second_name, study.second
    if found is None:
        raise ValueError("there is no second task")
    values = {
        stack: (
            [x for head, x in zip(found.heads, found.first, strict=True) if head.stack == stack],
            [y for head, y in zip(found.heads, found.second, strict=True) if head.stack == stack],
        )
        for stack in dict.fromkeys(head.stack for head in found.heads)
    }
    plot = importance_transfer(values, x_label=f"Importance, {study.task.name}", y_label=f"Importance, {name}")
    caption = "One point a head (Michel et al. 2019, figure 2)."
    rows = [
        (title, value.value, value.low, value.high, value.p_value)
        for title, value in (("Pearson's r", found.pearson), ("Spearman's rho", found.spearman))
    ]
    table = Table(
        (
            Column("Correlation"),
            Column("Value", numbers.significant),
            Column("2.5%", numbers.significant),
            Column("97.5%", numbers.significant),
            Column("p", numbers.significant),
        ),
        rows,
        notes=(
            f"Over {len(found.heads)} heads; bootstrap intervals of {study.config.resamples:,} resamples of heads.",
        ),
    )
    return Section("Other data", "", (Picture(plot, caption),), table)


def _training(study: HeadStudy) -> Section:
    curves = {
        f"step {snapshot.step:,}": [(0.0, snapshot.baseline), *_pairs(snapshot.points)] for snapshot in study.snapshots
    }
    plot = _removal_plot(study.task, curves)
    shares = study.config.profile_percentages
    table = Table(
        (
            Column("Step", numbers.fixed(0)),
            Column("All heads", numbers.significant),
            *(Column(f"{share}% gone, of that", numbers.percent) for share in shares),
            Column("Importance as in the model", numbers.significant),
        ),
        [
            (
                snapshot.step,
                snapshot.baseline,
                *(point.value / snapshot.baseline for point in snapshot.points),
                snapshot.agreement,
            )
            for snapshot in study.snapshots
        ],
        notes=("Importance as in the model: Spearman's correlation over heads, on the same examples.",),
    )
    caption = "Each checkpoint's heads removed in the order of their importance at that checkpoint (figure 5)."
    return Section("During training", "", (Picture(plot, caption),), table)


def _roles(study: HeadStudy) -> Section:
    named = {head: found for head, found in study.roles.items() if found.role is not None}
    counts = ", ".join(f"{sum(found.role == role for found in named.values())} {role}" for role in ROLES)
    text = (
        f"Heads whose largest weight is on one relative position in at least 90 % of cases: {counts}; "
        f"{len(study.roles) - len(named)} of {len(study.roles)} have no such role (Voita et al. 2019, section 5.1)."
    )
    importance = compared(study.scores, "importance")
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
        Column("Rank by importance", numbers.count),
    )
    note = "Share of queries whose largest weight is there; the ten heads with the largest share."
    return Section("What heads look at", text, (), Table(columns, rows, notes=(note,)))


def _attention(study: HeadStudy) -> Section:
    text = (
        "Each small picture is a head: a row for each token that attends, a column for each token that it attends to. "
        "The bar below is the head's importance. Choose a head with a click or the arrow keys, and switch it off to "
        "see the prediction without it. Predictions are stored with one head or one layer off, not with other sets."
    )
    importance = {str(head): float(value) for head, value in compared(study.scores, "importance").items()}
    data = {"importance": importance, "unit": unit_of_changes(study.model.config), "examples": study.views}
    return Section("What each head attends to", text, viewer=data)
