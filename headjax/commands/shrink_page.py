"""The page of `headjax shrink --report`: what came out, what each layer keeps, and other choices within the budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from headjax.core import numbers
from headjax.head_report.page import times
from headjax.models.walk import FEED_FORWARD
from headjax.report.drawing import Axis, Plot, draw, spans
from headjax.report.page import Picture, Section, render_page, write_page
from headjax.shrinking.choice import DAMAGES, FORMATS, NAMES, ChoiceSummary, Prices, ShrinkSummary, choose_if_any
from headjax.version import __version__

if TYPE_CHECKING:
    from headjax.commands.models import ChangedResult

ALONE = {"fewer heads alone": "heads", "fewer units alone": "units", "shared or smaller heads alone": "sharing"}
"""Choices of one technique, by the kind of forms that they take."""

CHOSEN = "this model"


def write_story(result: ChangedResult, summary: ShrinkSummary, story: ChoiceSummary, path: str) -> Path:
    """Write one HTML page that opens with what came out."""
    before, after = result.before, result.after
    facts = {
        f"{NAMES[name]}, of {FORMATS[name](budget['whole'])}": FORMATS[name](budget["left"])
        for name, budget in summary.budget.items()
    }
    facts[f"parameters in all, of {numbers.count(before.parameters)}"] = numbers.count(after.parameters)
    sizes: dict[str, Any] = {"parameters": (before.parameters, after.parameters, numbers.count)}
    for name, budget in summary.budget.items():
        if name in ("flops", "cache"):
            sizes[NAMES[name]] = budget["whole"], budget["left"], FORMATS[name]
    lead = [f"{form(whole)} to {form(left)} {name}, " for name, (whole, left, form) in sizes.items()]
    metric, interval = summary.metric.replace("_", " "), ""
    was, now = (numbers.significant(each.metrics[summary.metric]) for each in (before, after))
    if (change := result.significance) is not None:
        low, high = (numbers.significant(change[end]) for end in ("low", "high"))
        of = "" if change["metric"] == summary.metric else f" of the {change['metric'].replace('_', ' ')}"
        interval = f" (95% interval of the change{of}: {low} to {high})"
    facts[f"{metric}, {was} before{interval}"] = now
    count = (result.evaluation or {}).get("examples", 0)
    answer = (
        f"{''.join(lead)}{times(before.milliseconds, after.milliseconds)}{metric} {was} to {now} on {count:,} "
        f"examples{interval}.\n\n`{result.load}`"
    )
    sections = (
        Section("What each layer keeps", "", _kept(summary, story), story.layer_table()),
        Section("Other choices", "", (_others(summary, story),)),
        Section("Before and after", "", table=result.comparison[0]),
    )
    footer = f"headjax {__version__}, jax {jax.__version__}, times on {result.processor}."
    title = f"{Path(result.model or '').name}: smaller, not trained"
    return write_page(path, render_page(title, answer, sections, footer, facts))


def _kept(summary: ShrinkSummary, story: ChoiceSummary) -> list[Picture]:
    """Return what every layer keeps of each quantity that has a budget, as figures."""
    pictures = []
    for quantity, budget in summary.budget.items():
        form, name = FORMATS[quantity], NAMES[quantity]
        limit = "" if budget["limit"] is None else f", at most {form(budget['limit'])} were asked for"
        caption = (
            f"{form(budget['left'])} of {form(budget['whole'])} are left ({name}{limit}). Layers keep most where a "
            f"smaller form would change the output most: {DAMAGES[story.prices.damage]}."
        )
        pictures.append(Picture(kept_plot(story, quantity), caption, name))
    return pictures


def kept_plot(story: ChoiceSummary, quantity: str) -> Plot:
    """Draw the share of a quantity that every layer keeps, where it has any: attention, and feed-forwards."""
    chosen, options = story.choice.options, story.prices.options
    stacks = {place.split("/")[0] for place in chosen}
    shares: dict[str, list[tuple[float, float]]] = {}
    for place, option in chosen.items():
        if whole := getattr(options[place][0], quantity):
            stack, layer, *slot = place.split("/")
            name = "feed-forward" if slot == [FEED_FORWARD] else "attention"
            name = f"{stack}, {name}" if len(stacks) > 1 else name
            shares.setdefault(name, []).append((float(layer), getattr(option, quantity) / whole))
    lists = {name: ", ".join(numbers.percent(share) for _, share in points) for name, points in shares.items()}
    whole = sum(getattr(each[0], quantity) for each in options.values())
    left = sum(getattr(option, quantity) for option in chosen.values())
    title = f"What each layer keeps: {NAMES[quantity]}"
    highest = max(share for points in shares.values() for _, share in points)
    return draw(
        shares,
        x=Axis("Layer", lambda layer: f"{layer:.0f}" if layer == round(layer or 0.0) else ""),
        y=Axis("Kept, % of the original", numbers.percent, limits=(-0.03, max(1.03, highest))),
        title=title,
        alt=f"{title}. {'; '.join(f'{name} {listed}' for name, listed in lists.items())}.",
        level=("all layers", left / whole),
    )


def _others(summary: ShrinkSummary, story: ChoiceSummary) -> Picture:
    """Return the degradation against the budget: the least one, this model's, and those of other choices."""
    whole, quantity, choice = story.prices.whole(story.quantity), story.quantity, story.choice
    limits = {name: float(budget["limit"] or budget["left"] or 0.0) for name, budget in summary.budget.items()}

    def alone(kind: str) -> Prices:
        return story.prices.only(lambda option: option.kind == kind)

    rivals = {name: choose_if_any(alone(kind), limits) for name, kind in ALONE.items()}
    rivals["all layers alike"] = choose_if_any(story.prices, limits, uniform=True)
    others = {name: each for name, each in rivals.items() if each is not None and each.costs != choice.costs}
    points = {"best, predicted": [(point.costs[quantity] / whole, point.damage) for point in summary.frontier]}
    for name, each in ({CHOSEN: choice} | others).items():
        points[f"{name}, predicted"] = [(each.costs[quantity] / whole, each.damage)]
    points[f"{CHOSEN}, measured"] = [(choice.costs[quantity] / whole, summary.measured["damage"])]
    marks = ", ".join(f"{name} {numbers.significant(other.damage)}" for name, other in others.items())
    predicted, measured = (numbers.significant(each) for each in (choice.damage, summary.measured["damage"]))
    caption = (
        f"This model: {predicted} predicted, {measured} measured on {summary.measured['examples']:,} examples. Within "
        f"the same budget: {marks or 'no other choice'}. Degradation is the {DAMAGES[story.prices.damage]}; "
        "predictions add up what each layer alone does and are rough. The line is the best choice for each budget of "
        f"the {NAMES[quantity]} alone."
    )
    plot = draw(
        points,
        x=Axis(f"Share of the {NAMES[quantity]}", numbers.percent),
        y=Axis("Degradation, lower is better"),
        title="Degradation against the budget",
        alt=f"Degradation against the share of the {NAMES[quantity]} that is left: {spans(points)}.",
    )
    return Picture(plot, caption)
