"""Pages about heads: that of `headjax report`, which opens with an answer, and that of any Flax model.

The answer says how many heads can go, what that saves, what it costs, and the command that does it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from headjax.core import numbers
from headjax.core.progress import Progress, silent
from headjax.evaluation.paired import Comparison
from headjax.head_report.study import UNITS, WORDS, CurveConfig, CurvePoint, HeadStudy, removable
from headjax.heads.ablation import ablate
from headjax.heads.agreement import agreement_kind
from headjax.heads.head_id import Values, all_heads
from headjax.heads.ordering import Order, by_score, random_order
from headjax.heads.program import Applied, Loss, mean_loss, prepare
from headjax.heads.pruning import PERCENTAGES, percent_steps, prune
from headjax.heads.scoring import ROLES, Scores, score_heads
from headjax.heads.site import Sites, find_heads, ones, without
from headjax.models.model import Model
from headjax.plots import score_map
from headjax.report.drawing import pruning_curves
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
    metric = task.primary_metric.replace("_", " ")
    smaller = prune(study.model, point.heads)
    parameters = " to ".join(map(numbers.count, (study.model.num_parameters, smaller.num_parameters)))
    text = (
        f"Remove {point.removed} of {len(all_heads(study.model.config))} heads: {parameters} parameters, "
        f"{times(*timer((study.model, smaller)))}{metric} "
        f"{numbers.significant(study.whole)} to {numbers.significant(point.value)} on {task.count():,} examples"
    )
    refit = " --reconstruct" if order.reconstruct else ""
    command = f"headjax prune {model_name} OUT --remove {point.removed} --by {order.order.by}{refit} --task {task_name}"
    doubt = few
    if not few and (change := point.change) is not None:
        worst = -change.low if task.higher_is_better else change.high
        if task.measure.kind == "sum" and task.primary_metric != "loss":
            worst = np.expm1(change.high) * study.whole  # the interval is in nats
        doubt = "" if worst <= tolerance(study) else f"too few examples to exclude a loss of {allowed(study)}"
    doubt = f" {doubt[0].upper()}{doubt[1:]}." if doubt else ""
    return Answer(name, order, point, f"{text}{interval(study, point.change)}.{doubt}\n\n`{command}`")


def largest(study: HeadStudy, name: str) -> CurvePoint | None:
    """Return the first seed's point of the largest share of heads that an order removes within the tolerance."""
    points = study.curves[name]
    share = removable(points, study.whole, tolerance(study), study.task.higher_is_better)
    return next((point for point in points if point.fraction == share), None)


def tolerance(study: HeadStudy) -> float:
    """Return the loss of the primary metric that does not count: one point, or 5 % of one that is not a share."""
    return POINT if is_share(study) else RELATIVE * abs(study.whole)


def allowed(study: HeadStudy) -> str:
    """Return the tolerance in words."""
    return "one point" if is_share(study) else f"{RELATIVE:.0%} of the {study.task.primary_metric}"


def is_share(study: HeadStudy) -> bool:
    """Whether the primary metric is a share such as an accuracy, which changes by points."""
    return study.task.higher_is_better and study.whole <= 1.0


def too_few(study: HeadStudy) -> str:
    """Return why the examples cannot show the tolerance at all, where a single one weighs more."""
    needed, count = round(1 / POINT), study.task.count()
    if study.task.measure.kind != "binary" or count >= needed:
        return ""
    return f"one of {count} examples is more than one point, so judge at least {needed} (`--judged`)"


def times(before: Milliseconds, after: Milliseconds) -> str:
    """Return the times of the largest batch that was timed, in words."""
    timed = [size for size in before if before[size] and after[size]]
    if not timed:
        return ""
    old, new = (numbers.significant(each[timed[-1]]) for each in (before, after))
    return f"{old} to {new} ms for a batch of {timed[-1]}, "


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
    facts = {f"{task.primary_metric}, all heads, {task.count():,} examples": numbers.significant(study.whole)}
    for name in dict.fromkeys((best.name, "random")):
        if name in study.curves and not too_few(study):
            point, words = largest(study, name), CurveConfig.parse(name).words
            share, change = (0.0, "") if point is None else (point.fraction, interval(study, point.change))
            fact = f"of the heads can go by {words} at {allowed(study)}, {task.count():,} examples{change}"
            facts[fact] = numbers.percent(share)
    text = (
        "Each small picture is a head: a row for each token that attends, a column for each token that it attends to. "
        "The bar below is the head's importance as a share of its layer's. Choose a head with a click or the arrow "
        "keys, and switch it off to see the prediction without it. Predictions are stored with one head or one layer "
        "off, not with other sets."
    )
    importance = {str(head): float(value) for head, value in study.scores["importance_layer"].items()}
    unit = UNITS[agreement_kind(study.model.config)]
    data = {"importance": importance, "unit": unit, "examples": study.views}
    attention = Section("What each head attends to", text, viewer=data)
    sections = (_pruning(study, best), _maps(study), _roles(study), attention)
    return write_page(path, render_page(TITLE, summary, sections, footer(study.seconds), facts))


def footer(seconds: float) -> str:
    """Return how a page was made."""
    return f"headjax {__version__}, jax {jax.__version__}, {numbers.duration(seconds)} in all."


def score_maps(scores: Mapping[str, Values]) -> tuple[Picture, ...]:
    """Return the scores of `MAPS` that there are as maps, of which a menu shows one."""
    pictures = []
    for name, (title, unit, meaning) in MAPS.items():
        if (values := scores.get(name)) is None:
            continue
        finite, ends = [head for head, value in values.items() if np.isfinite(value)], ""
        if finite:
            extremes = max(finite, key=values.__getitem__), min(finite, key=values.__getitem__)
            high, low = (f"`{head}` ({numbers.significant(values[head])})" for head in extremes)
            ends = f"Highest in {high}, lowest in {low}."
        pictures.append(Picture(score_map(None, values, title=title, unit=unit), f"{ends} {meaning}", title))
    return tuple(pictures)


def _maps(study: HeadStudy) -> Section:
    """Return the maps of all scores, and of every head removed alone."""
    effects = study.effects
    scale, unit = (100.0, "points") if is_share(study) else (1.0, effects.metric)
    changes = {head: scale * change for head, change in effects.effect.items()}
    title = f"Change of {effects.metric} without the head"
    worse = sum(p_value < 0.01 for p_value in effects.p_value.values())
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
    task, name = study.task, study.task.primary_metric.replace("_", " ").capitalize()
    plot = pruning_curves(
        {CurveConfig.parse(order).words: points for order, points in with_whole(study.curves, study.whole).items()},
        metric=name,
        better="higher" if task.higher_is_better else "lower",
        baseline=study.whole,
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


# A page about the heads of any Flax model.


def _orders(
    name: str, model: Any, batches: Sequence[Any], loss: Loss | None, scores: Scores, seeds: int
) -> list[Order]:
    """Return the orders of one name: several of `random`."""
    if name == "random":
        heads = tuple(scores.score("importance"))
        return [random_order(heads, seed) for seed in range(seeds)]
    if name == "ablation":
        return [by_score(ablate(model, batches, "each", loss=loss).effects())]
    return [by_score(scores.score(name))]


def report_heads(
    model: nnx.Module | Applied,
    batches: Iterable[Any],
    out: str | os.PathLike[str],
    *,
    loss: Loss | None,
    held_out: Iterable[Any] | None = None,
    orders: Sequence[str] = ("importance_layer", "fisher", "random"),
    percentages: Sequence[int] = PERCENTAGES,
    seeds: int = 3,
    progress: Progress = silent,
) -> Path:
    """Write one HTML page about the heads of any Flax model: a map of each score, pruning curves, and its layers.

    The page needs no other file. Nothing is trained.

        >>> layer = nnx.MultiHeadAttention(num_heads=4, in_features=16, decode=False, rngs=nnx.Rngs(0))
        >>> def loss(model, x):
        ...     return ((model(x) - x) ** 2).mean((1, 2))
        >>> x = np.random.default_rng(0).normal(size=(2, 3, 16)).astype(np.float32)
        >>> headjax.report_heads(layer, [x], folder / "heads.html", loss=loss, percentages=[50], seeds=1).name
        'heads.html'

    Args:
        model: Any module, or a function of a tree of arrays, as for `headjax.score_heads`.
        batches: Examples that heads are scored and ordered on.
        out: File of the page.
        loss: Function of a model and a batch, as for `headjax.score_heads`.
        held_out: Examples that the curves are measured on; None is `batches`, which the page says.
        orders: Orders of removal: names of scores, `ablation`, or `random`.
        percentages: Shares of the heads to remove.
        seeds: Number of random orders.
        progress: Shows how far it is.

    Raises:
        DataError: There are no examples.
        HeadjaxError: There is no such order, the file cannot be written, or as for `headjax.score_heads`.
    """
    started = time.perf_counter()
    program, state = prepare(model, loss)
    batches = list(batches)
    with progress("scoring", len(batches), "batch") as bar:
        scores = score_heads(model, batches, loss=loss, progress=bar)
    eval_batches = batches if held_out is None else list(held_out)
    curves: dict[str, list[CurvePoint]] = {name: [] for name in orders}
    for name, points in curves.items():
        for seed, order in enumerate(_orders(name, model, batches, loss, scores, seeds)):
            for percentage, count in zip(percentages, percent_steps(len(order), percentages), strict=True):
                value = mean_loss(program, state, without(program.sites, order[:count]), eval_batches)
                points.append(CurvePoint(percentage / 100.0, count, seed, value))
    baseline = mean_loss(program, state, ones(program.sites), eval_batches)
    facts = _facts(program.sites, curves, baseline)
    sections = [
        Section("What the scores say", "One pass over the examples gives every score.", score_maps(scores.values)),
        _removal(curves, baseline, "the same" if held_out is None else "other"),
        Section("Where the heads lie", "", table=_layers(program.sites)),
    ]
    summary = f"{type(model).__name__}: {scores.examples:,} examples score its heads. Nothing was trained."
    return write_page(out, render_page(TITLE, summary, sections, footer(time.perf_counter() - started), facts))


def _facts(sites: Sites, curves: Mapping[str, Sequence[CurvePoint]], baseline: float) -> dict[str, str]:
    best = max((removable(points, baseline, RELATIVE * abs(baseline), False) for points in curves.values()), default=0)
    return {
        "attention layers": numbers.count(sum(len(site.places) for site in sites)),
        "heads": numbers.count(len(find_heads(sites))),
        "mean loss": numbers.significant(baseline),
        f"of the heads can go at {numbers.percent(RELATIVE)} more loss": numbers.percent(best),
    }


def _removal(curves: Mapping[str, Sequence[CurvePoint]], baseline: float, examples: str) -> Section:
    plot = pruning_curves(
        with_whole(curves, baseline), metric="Mean loss", baseline=baseline, title="Loss against heads removed"
    )
    caption = (
        f"Heads gated off in each order, without training afterwards, measured on {examples} examples as those that "
        "order them. A band reaches from the best random order to the worst."
    )
    return Section("How many heads can go", "", (Picture(plot, caption),))


def _layers(sites: Sites) -> Table:
    rows = [
        (str(site.head_ids()[start]).rpartition("/")[0], site.heads, site.kv_heads, site.head_dim)
        for site in sites
        for start in range(0, len(site.head_ids()), site.heads)
    ]
    sizes = (Column(name, numbers.count) for name in ("Heads", "KV heads", "head_dim"))
    return Table((Column("Layer"), *sizes), rows)
