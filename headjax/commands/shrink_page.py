"""The page of `headjax shrink --report`: what came out, what each layer keeps, and other choices within the budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from headjax.core import numbers
from headjax.head_report.page import times
from headjax.models.walk import FEED_FORWARD
from headjax.report.curves import Axis, draw, spans
from headjax.report.page import Picture, Section, render_page, write_page
from headjax.report.style import Plot
from headjax.shrinking.choice import DAMAGES, FORMATS, NAMES, Choice, ChoiceSummary, Prices, choose_if_any
from headjax.version import __version__

if TYPE_CHECKING:
    from headjax.commands.shrink_result import Result

ALONE = {"fewer heads alone": "heads", "fewer units alone": "units", "shared or smaller heads alone": "sharing"}
"""Choices of one technique, by the kind of forms that they take."""

CHOSEN = "this model"


def write_story(found: Result, story: ChoiceSummary, path: str) -> Path:
    """Write one HTML page that opens with what came out."""
    sections = (
        Section("What each layer keeps", "", _kept(found, story), story.layer_table()),
        Section("Other choices", "", (_others(found, story),)),
        Section("Before and after", "", table=found.comparison()),
    )
    footer = f"headjax {__version__}, jax {jax.__version__}, times on {found.processor}."
    title = f"{Path(found.model or '').name}: smaller, not trained"
    return write_page(path, render_page(title, _answer(found), sections, footer, _facts(found)))


def _answer(found: Result) -> str:
    """Return sizes, times and the metric before and after, and the expression that loads the model."""
    sizes: dict[str, Any] = {"parameters": (found.parameters_before, found.parameters, numbers.count)}
    for name in found.budget:
        if name in ("flops", "cache"):
            sizes[NAMES[name]] = (found.budget[name]["whole"], found.budget[name]["left"], FORMATS[name])
    told = [f"{form(before)} to {form(after)} {name}, " for name, (before, after, form) in sizes.items()]
    name, before, after = _metric(found)
    count = (found.evaluation or {}).get("examples", 0)
    return (
        f"{''.join(told)}{times(found.milliseconds_before, found.milliseconds)}{name} "
        f"{before} to {after} on {count:,} examples{_interval(found)}.\n\n`{found.load}`"
    )


def _interval(found: Result) -> str:
    """Return the interval of the change in brackets."""
    if found.significance is None:
        return ""
    low, high = (numbers.significant(found.significance[end]) for end in ("low", "high"))
    return f" (95% interval of the change of the {found.significance['metric'].replace('_', ' ')}: {low} to {high})"


def _facts(found: Result) -> dict[str, str]:
    """Return the numbers at the head of the page: what is left, of how much."""
    facts = {
        f"{NAMES[name]}, of {FORMATS[name](budget['whole'])}": FORMATS[name](budget["left"])
        for name, budget in found.budget.items()
    }
    facts[f"parameters in all, of {numbers.count(found.parameters_before)}"] = numbers.count(found.parameters)
    name, before, after = _metric(found)
    return facts | {f"{name}, {before} before{_interval(found)}": after}


def _metric(found: Result) -> tuple[str, str, str]:
    """Return the name of the task's main metric in words, and its values before and after."""
    before, after = (numbers.significant(metrics[found.metric]) for metrics in (found.metrics_before, found.metrics))
    return found.metric.replace("_", " "), before, after


def _kept(found: Result, story: ChoiceSummary) -> list[Picture]:
    """Return what every layer keeps of each quantity that has a budget, as figures."""
    pictures = []
    for quantity, budget in found.budget.items():
        form, name = FORMATS[quantity], NAMES[quantity]
        limit = "" if budget["limit"] is None else f", at most {form(budget['limit'])} were asked for"
        caption = (
            f"{form(budget['left'])} of {form(budget['whole'])} are left ({name}{limit}). Layers keep most where a "
            f"smaller form would change the output most: {DAMAGES[story.prices.damage]}."
        )
        pictures.append(Picture(kept_plot(story, quantity), caption, name))
    return pictures


def kept(story: ChoiceSummary, quantity: str) -> dict[str, list[tuple[float, float]]]:
    """Return the share that every layer keeps of a quantity, where it has any: attention, and feed-forwards."""
    stacks = {place.split("/")[0] for place in story.choice.options}
    shares: dict[str, list[tuple[float, float]]] = {}
    for place, option in story.choice.options.items():
        if whole := getattr(story.prices.options[place][0], quantity):
            stack, layer, *slot = place.split("/")
            name = "feed-forward" if slot == [FEED_FORWARD] else "attention"
            name = f"{stack}, {name}" if len(stacks) > 1 else name
            shares.setdefault(name, []).append((float(layer), getattr(option, quantity) / whole))
    return shares


def kept_plot(story: ChoiceSummary, quantity: str) -> Plot:
    """Draw the share of a quantity that every layer keeps."""
    shares = kept(story, quantity)
    lists = {name: ", ".join(numbers.percent(share) for _, share in points) for name, points in shares.items()}
    whole, left = (
        sum(getattr(option, quantity) for option in options)
        for options in ((own[0] for own in story.prices.options.values()), story.choice.options.values())
    )
    title = f"What each layer keeps: {NAMES[quantity]}"
    highest = max(share for points in shares.values() for _, share in points)
    return draw(
        shares,
        x=Axis("Layer", lambda layer: f"{layer:.0f}" if layer == round(layer or 0.0) else ""),
        y=Axis("Kept, % of the original", numbers.percent, limits=(-0.03, max(1.03, highest))),
        title=title,
        alt=f"{title}. {'; '.join(f'{name} {told}' for name, told in lists.items())}.",
        level=("all layers", left / whole),
    )


def _others(found: Result, story: ChoiceSummary) -> Picture:
    """Return the degradation against the budget: the least one, this model's, and those of other choices."""
    whole, quantity, choice = story.prices.whole(story.quantity), story.quantity, story.choice
    others = rivals(story, found.budget)
    points = {"best, predicted": [(point.costs[quantity] / whole, point.damage) for point in found.frontier]}
    for name, each in ({CHOSEN: choice} | others).items():
        points[f"{name}, predicted"] = [(each.costs[quantity] / whole, each.damage)]
    points[f"{CHOSEN}, measured"] = [(choice.costs[quantity] / whole, found.measured["damage"])]
    marks = ", ".join(f"{name} {numbers.significant(other.damage)}" for name, other in others.items())
    caption = (
        f"This model: {numbers.significant(choice.damage)} predicted, {numbers.significant(found.measured['damage'])} "
        f"measured on {found.measured['examples']:,} examples. Within the same budget: {marks or 'no other choice'}. "
        f"Degradation is the {DAMAGES[story.prices.damage]}; predictions add up what each layer alone does and are "
        f"rough. The line is the best choice for each budget of the {NAMES[quantity]} alone."
    )
    plot = draw(
        points,
        x=Axis(f"Share of the {NAMES[quantity]}", numbers.percent),
        y=Axis("Degradation, lower is better"),
        title="Degradation against the budget",
        alt=f"Degradation against the share of the {NAMES[quantity]} that is left: {spans(points)}.",
    )
    return Picture(plot, caption)


def rivals(story: ChoiceSummary, budget: Mapping[str, Mapping[str, float | None]]) -> dict[str, Choice]:
    """Return the best other choices within the same limits: of one technique, and with all layers alike."""
    limits = {name: float(own["limit"] or own["left"] or 0.0) for name, own in budget.items()}
    found = {name: choose_if_any(_alone(story, kind), limits) for name, kind in ALONE.items()}
    found["all layers alike"] = choose_if_any(story.prices, limits, uniform=True)
    return {name: one for name, one in found.items() if one is not None and one.costs != story.choice.costs}


def _alone(story: ChoiceSummary, kind: str) -> Prices:
    """Return the table with forms of one kind."""
    return story.prices.only(lambda option: option.kind == kind)
