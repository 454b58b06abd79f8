"""A choice layer by layer, beside other models of the same budget: data, tables and one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headjax.models.layerwise import FEED_FORWARD
from headjax.report import numbers
from headjax.report.curves import Axis, Panel, draw
from headjax.report.page import Picture, Section, write_page
from headjax.report.presets import trade_off
from headjax.report.style import Plot
from headjax.report.tables import Column, Table
from headjax.shrinking.choice import Choice, Option
from headjax.shrinking.choice import Table as Options
from headjax.shrinking.shrink import Point
from headjax.version import __version__

FORMATS: Mapping[str, numbers.Format] = {
    "parameters": numbers.count, "flops": numbers.flops, "cache": numbers.size, "latency": numbers.duration
}  # fmt: skip
NAMES = {
    "parameters": "parameters of attention and feed-forwards",
    "flops": "FLOPs of an example",
    "cache": "cache of a token",
    "latency": "seconds of a forward pass",
}
DAMAGES = {
    "kl": "KL divergence of the predictions from the original model's, in nats",
    "cosine": "1 - cosine to the original model's embeddings",
    "squared_difference": "squared difference from the original model's numbers",
    "loss": "rise of the loss",
}
"""Damages in words."""


class Rival(NamedTuple):
    """A model within the same budget.

    Attributes:
        name: how it was chosen.
        predicted: sum of damages.
        measured: damage of the built model on evaluation examples.
        on_selection: the same on the examples that its forms were measured on; beside the prediction it tells how much
            less or more the forms do together than the sum of each alone.
        costs: by quantity.
        metrics: of the task.
    """

    name: str
    predicted: float
    measured: float
    on_selection: float
    costs: Mapping[str, float]
    metrics: Mapping[str, float]


class Story(NamedTuple):
    """A decision.

    Attributes:
        options: the table of options.
        quantity: the first budgeted quantity.
        frontier: least damage by budget.
        choice: the decision; None where the frontier alone was asked for.
        rivals: the built model first, then the others.
        headline: the task's main metric, and its value in the original model.
    """

    options: Options
    quantity: str
    frontier: Sequence[Point]
    choice: Choice | None = None
    rivals: Sequence[Rival] = ()
    headline: tuple[str, float] = ("", 0.0)

    def layers(self) -> list[dict[str, Any]]:
        """Return every sub-layer's form, and the neighbours of that choice, as JSON data."""
        if self.choice is None:
            return []
        found = []
        for place, option in self.choice.options.items():
            smaller, larger = self._neighbours(option)
            entry = {**option._asdict(), "form": option.told}
            for name, other in (("smaller", smaller), ("larger", larger)):
                entry[name] = None if other is None else {
                    "form": other.told, "damage": other.damage, self.quantity: getattr(other, self.quantity)
                }  # fmt: skip
            found.append({**entry, "place": place})
        return found

    def _neighbours(self, option: Option) -> tuple[Option | None, Option | None]:
        """Return the next smaller and the next larger option that no cheaper one beats."""

        def cost(one: Option) -> float:
            return float(getattr(one, self.quantity))

        own = self.options.options[option.place]
        good = [one for one in own if not any(cost(o) < cost(one) and o.damage <= one.damage for o in own)]
        smaller = max((one for one in good if cost(one) < cost(option)), key=cost, default=None)
        return smaller, min((one for one in good if cost(one) > cost(option)), key=cost, default=None)

    def layer_table(self) -> Table:
        """Return every sub-layer's form with the reason: the changes of its neighbours."""
        columns = (
            Column("Layer"), Column("Keeps"), Column("Damage", numbers.significant),
            Column("Next smaller"), Column("Next larger"),
        )  # fmt: skip
        rows = []
        for option in self.choice.options.values() if self.choice else ():
            changes = [self._change(option, other) for other in self._neighbours(option)]
            whole = self.options.options[option.place][0]
            count, _, form = _short(option).partition(", ")
            kept = ", ".join(filter(None, (f"{count} of {whole.told.split()[0]}", form)))
            place = option.place.replace(f"/{FEED_FORWARD}", " units")
            rows.append((place, kept if option != whole else f"all {whole.told}", option.damage, *changes))
        notes = (
            f"Damage: {DAMAGES[self.options.damage]}, with this sub-layer alone in that form, repaired.",
            f"Next smaller and larger: what that form would change of the {NAMES[self.quantity]}, and of the damage.",
            "Shared: dimensions of queries and keys that heads share. KV: KV heads. Latent: numbers that "
            "keys and values of all heads are made from.",
        )
        return Table(columns, rows, notes=notes)

    def _change(self, option: Option, other: Option | None) -> str:
        if other is None:
            return "-"
        cost, damage = (getattr(other, name) - getattr(option, name) for name in (self.quantity, "damage"))
        changes = [("-" if cost < 0 else "+") + FORMATS[self.quantity](abs(cost))]
        changes += [("-" if damage < 0 else "+") + numbers.significant(abs(damage))]
        return f"{_short(other)}: {', '.join(changes)}"

    def rival_table(self) -> Table:
        """Return all models that were built, and the whole."""
        name, whole = self.headline
        form = FORMATS[self.quantity]
        columns = (
            Column("Within the budget"), Column(NAMES[self.quantity].capitalize(), form),
            Column("Predicted damage", numbers.significant), Column("Measured damage", numbers.significant, "lower"),
            Column(name, numbers.significant),
        )  # fmt: skip
        rows: list[Sequence[Any]] = [("the original model", self.options.whole(self.quantity), 0.0, None, whole)]
        for rival in self.rivals:
            values = (rival.predicted, rival.measured, rival.metrics.get(name))
            rows.append((rival.name, rival.costs[self.quantity], *values))
        notes = (
            "Nothing is trained. Damage is measured on evaluation examples.",
            "Predictions are rough: forms together do more or less damage than the sum of each alone.",
        )
        return Table(columns, rows, notes=notes)

    def frontier_table(self) -> Table:
        """Return the least damage by budget."""
        counted = [name for name in FORMATS if self.options.whole(name)]
        columns = [Column("Budget", numbers.percent)]
        columns += [Column(NAMES[name].capitalize(), FORMATS[name]) for name in counted]
        columns += [Column("Predicted damage", numbers.significant)]
        rows = [(point.share, *(point.costs[name] for name in counted), point.damage) for point in self.frontier]
        return Table(columns, rows, title=f"Least damage for a share of the {NAMES[self.quantity]}")

    def frontier_plot(self) -> Plot:
        """Draw damage against budget, with all models that were built."""
        points = {"best choice, predicted": [(self._share(point.costs), point.damage) for point in self.frontier]}
        for rival in self.rivals:
            points[f"{rival.name}, measured"] = [(self._share(rival.costs), rival.measured)]
        return trade_off(
            points, cost=f"Share of the {NAMES[self.quantity]}", metric="Damage", cost_format=numbers.percent,
            title="Damage against the budget",
        )  # fmt: skip

    def _share(self, costs: Mapping[str, float]) -> float:
        return costs[self.quantity] / self.options.whole(self.quantity)

    def layer_plot(self) -> Plot:
        """Draw the shares of heads, attention parameters and units that every layer keeps, a panel a stack."""
        chosen = {} if self.choice is None else self.choice.options
        series: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for place, option in chosen.items():
            stack, layer = place.split("/")[:2]
            whole, at = self.options.options[place][0], float(layer)
            if place.endswith(FEED_FORWARD):
                found = {"units of the feed-forward": (option.units or 0) / (whole.units or 1)}
            else:
                found = {"heads": len(option.heads or ()) / max(len(whole.heads or ()), 1)}
                found["parameters of the attention"] = option.parameters / max(whole.parameters, 1.0)
            for name, share in found.items():
                series.setdefault(stack, {}).setdefault(name, []).append((at, share))
        panels = [
            Panel(series=own, y=Axis("Kept", numbers.percent, limits=(-0.04, 1.08)), title=stack * (len(series) > 1))
            for stack, own in series.items()
        ]
        said = "; ".join(f"{place} {option.told}" for place, option in chosen.items())
        return draw(
            [[panel] for panel in panels], x=Axis("Layer", _layer_number), title="What every layer keeps",
            alt=f"What every layer keeps: {said}.", height=3.4 * len(panels),
        )  # fmt: skip


FORMS = {"collaborative": "{} shared", "fixed": "size {}", "grouped": "{} KV", "latent": "latent {}"}
"""Conversions in words, with the first of their sizes."""


def _short(option: Option) -> str:
    """Return a form in words."""
    count = option._replace(to="").told
    name, _, sizes = option.to.partition(":")
    return f"{count}, {FORMS[name].format(sizes.split(',')[0].split('=')[1])}" if name else count


def _layer_number(value: float) -> str:
    return f"{value:.0f}" if abs(value - round(value)) < 1e-6 else ""


def write_story(story: Story, path: str, model: str, about: Sequence[str]) -> Path:
    """Write the page of a decision."""
    whole, quantity = story.options.whole(story.quantity), story.quantity
    form, explained = FORMATS[quantity], DAMAGES[story.options.damage]
    sections, facts = [], {}
    summary = (
        f"Every attention layer and every feed-forward of `{model}` was measured in several smaller forms: fewer "
        f"heads, smaller or shared queries, keys and values, fewer units. Damage is the {explained}. For "
        f"a budget, an integer program takes the form of every layer with which the sum of damages is least."
    )
    if story.choice is not None and story.rivals:
        built, (name, before) = story.rivals[0], story.headline
        kept, told = built.costs[quantity] / whole, name.replace("_", " ")
        facts = {
            f"of the {NAMES[quantity]} kept": numbers.percent(kept),
            f"{told}, {numbers.significant(before)} before": numbers.significant(built.metrics[name]),
            "damage that was predicted": numbers.significant(built.predicted),
            "damage measured on the same examples": numbers.significant(built.on_selection),
            "damage measured on evaluation examples": numbers.significant(built.measured),
        }
        summary += (
            f"\n\nOf the {NAMES[quantity]}, {form(built.costs[quantity])} of {form(whole)} are left "
            f"({numbers.percent(kept)}). {told.capitalize()} is {numbers.significant(built.metrics[name])}; that of "
            f"the original model is {numbers.significant(before)}."
        )
        caption = (
            "Shares that every layer keeps. Where the parameters of the attention fall below its heads, the heads that "
            "are left have smaller or shared queries, keys or values."
        )
        text = "Each row says what a layer keeps, and what the next smaller and the next larger form would change."
        picture = Picture(story.layer_plot(), caption)
        sections.append(Section("What every layer keeps, and why", text, (picture,), story.layer_table()))
    caption = (
        "The line is the predicted damage of the best choice for each budget, a sum over layers. Points are models "
        "that were built for this budget: the choice, and what one technique alone, or all layers alike, can do."
    )
    sections.append(Section("Damage against the budget", "", (Picture(story.frontier_plot(), caption),)))
    if story.rivals:
        sections.append(Section("Models within the budget, measured", "", table=story.rival_table()))
    sections.append(Section("The whole frontier", "", table=story.frontier_table()))
    title = f"How small can {Path(model).name} be?"
    return write_page(path, title, summary, sections, " ".join((*about, f"headjax {__version__}.")), facts)
