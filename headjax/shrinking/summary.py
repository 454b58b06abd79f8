"""A choice sub-layer by sub-layer, as data and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headjax.core import numbers
from headjax.models.walk import FEED_FORWARD
from headjax.report.tables import Column, Table
from headjax.shrinking.choice import NO_LAYER, Choice, Option, Prices

FORMATS: Mapping[str, numbers.Format] = {
    "parameters": numbers.count, "flops": numbers.flops, "cache": numbers.size, "latency": numbers.duration
}  # fmt: skip
NAMES = {
    "parameters": "parameters of attention and feed-forwards",
    "flops": "FLOPs of an example",
    "cache": "KV cache of a token",
    "latency": "seconds of a forward pass",
}
DAMAGES = {
    "kl": "KL divergence of the predictions from the original model's, in nats",
    "cosine": "1 - cosine to the original model's embeddings",
    "squared_difference": "squared difference from the original model's numbers",
    "loss": "rise of the loss",
}
"""Degradations in words."""

CONVERSIONS = {"collaborative": "{} shared", "fixed": "size {}", "grouped": "{} KV", "latent": "latent {}"}
"""Conversions in words, with the first of their sizes."""

NOTES = (
    "No layer: measured without it, the attention behind it repaired, in equal shares of its sub-layers.",
    "Shared: dimensions of queries and keys that heads share. KV: KV heads. Latent: numbers that keys and values of "
    "all heads are made from.",
)


class ChoiceSummary(NamedTuple):
    """A choice among options, and the quantity whose costs explain it."""

    prices: Prices
    quantity: str
    choice: Choice

    def layers(self) -> list[dict[str, Any]]:
        """Return every sub-layer's form, and the neighbours of that choice, as JSON data."""
        entries = []
        for option in self.choice.options.values():
            entry = {**option._asdict(), "form": option.description}
            for name, other in zip(("smaller", "larger"), self._neighbours(option), strict=True):
                entry[name] = None if other is None else {
                    "form": other.description, "damage": other.damage, self.quantity: self._cost(other)
                }  # fmt: skip
            entries.append(entry)
        return entries

    def _cost(self, option: Option) -> float:
        return float(getattr(option, self.quantity))

    def _neighbours(self, option: Option) -> tuple[Option | None, Option | None]:
        """Return the next smaller and the next larger option that no cheaper one beats, of this sub-layer alone."""
        if option.kind == NO_LAYER:
            return None, None
        cost, cost_of = self._cost(option), self._cost
        others = [each for each in self.prices.options[option.place] if each.kind != NO_LAYER]
        good = [
            each for each in others if not any(cost_of(o) < cost_of(each) and o.damage <= each.damage for o in others)
        ]
        smaller = max((each for each in good if cost_of(each) < cost), key=cost_of, default=None)
        return smaller, min((each for each in good if cost_of(each) > cost), key=cost_of, default=None)

    def layer_table(self) -> Table:
        """Return the form of every sub-layer that had a choice, with the reason: the changes of its neighbours."""
        columns = (
            Column("Layer"), Column("Keeps"), Column("Degradation", numbers.significant),
            Column("Next smaller"), Column("Next larger"),
        )  # fmt: skip
        notes = (
            f"Degradation: {DAMAGES[self.prices.damage]}, with this sub-layer alone so, repaired; estimated.",
            NOTES[0],
            f"Next smaller and larger: their change of the {NAMES[self.quantity]}, and of the degradation.",
            NOTES[1],
        )
        rows = [self._row(option) for option in self.choice.options.values() if self._had_choice(option)]
        return Table(columns, rows, notes=notes)

    def _had_choice(self, option: Option) -> bool:
        """Return whether a sub-layer has become smaller, or could have."""
        return option.kind != "whole" or len(set(map(self._cost, self.prices.options[option.place]))) > 1

    def _row(self, option: Option) -> tuple[Any, ...]:
        whole = self.prices.options[option.place][0]
        count, _, form = _short(option).partition(", ")
        of = "" if option.kind == NO_LAYER else f" of {whole.description.split()[0]}"
        kept = ", ".join(filter(None, (count + of, form))) if option != whole else f"all {whole.description}"
        changes = (self._change(option, other) for other in self._neighbours(option))
        return option.place.replace(f"/{FEED_FORWARD}", " units"), kept, option.damage, *changes

    def _change(self, option: Option, other: Option | None) -> str:
        if other is None:
            return "-"
        cost, damage = self._cost(other) - self._cost(option), other.damage - option.damage
        changes = [("-" if cost < 0 else "+") + FORMATS[self.quantity](abs(cost))]
        changes += [("-" if damage < 0 else "+") + numbers.significant(abs(damage))]
        return f"{_short(other)}: {', '.join(changes)}"


def _short(option: Option) -> str:
    """Return a form in few words: `4 heads, 2 KV`."""
    count = option._replace(to="").description
    name, _, sizes = option.to.partition(":")
    return f"{count}, {CONVERSIONS[name].format(sizes.split(',')[0].split('=')[1])}" if name else count
