"""A choice layer by layer, as data and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headjax.core import numbers
from headjax.models.walk import FEED_FORWARD
from headjax.report.tables import Column, Table
from headjax.shrinking.choice import NO_LAYER, Choice, Option
from headjax.shrinking.choice import Table as Options

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


class Story(NamedTuple):
    """A decision."""

    options: Options
    quantity: str
    choice: Choice

    def layers(self) -> list[dict[str, Any]]:
        """Return every sub-layer's form, and the neighbours of that choice, as JSON data."""
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
        """Return the next smaller and the next larger option that no cheaper one beats, of this sub-layer alone."""

        def cost(one: Option) -> float:
            return float(getattr(one, self.quantity))

        if option.kind == NO_LAYER:
            return None, None
        own = [one for one in self.options.options[option.place] if one.kind != NO_LAYER]
        good = [one for one in own if not any(cost(o) < cost(one) and o.damage <= one.damage for o in own)]
        smaller = max((one for one in good if cost(one) < cost(option)), key=cost, default=None)
        return smaller, min((one for one in good if cost(one) > cost(option)), key=cost, default=None)

    def layer_table(self) -> Table:
        """Return the form of every sub-layer that had a choice, with the reason: the changes of its neighbours."""
        columns = (
            Column("Layer"), Column("Keeps"), Column("Degradation", numbers.significant),
            Column("Next smaller"), Column("Next larger"),
        )  # fmt: skip
        rows = []
        for option in filter(self._had_choice, self.choice.options.values()):
            changes = [self._change(option, other) for other in self._neighbours(option)]
            whole = self.options.options[option.place][0]
            count, _, form = _short(option).partition(", ")
            of = "" if option.kind == NO_LAYER else f" of {whole.told.split()[0]}"
            kept = ", ".join(filter(None, (count + of, form)))
            place = option.place.replace(f"/{FEED_FORWARD}", " units")
            rows.append((place, kept if option != whole else f"all {whole.told}", option.damage, *changes))
        notes = (
            f"Degradation: {DAMAGES[self.options.damage]}, with this sub-layer alone so, repaired; estimated.",
            "No layer: measured without it, the attention behind it repaired, in equal shares of its sub-layers.",
            f"Next smaller and larger: their change of the {NAMES[self.quantity]}, and of the degradation.",
            "Shared: dimensions of queries and keys that heads share. KV: KV heads. Latent: numbers that "
            "keys and values of all heads are made from.",
        )
        return Table(columns, rows, notes=notes)

    def _had_choice(self, option: Option) -> bool:
        """Return whether a sub-layer has become smaller, or could have."""
        costs = {getattr(one, self.quantity) for one in self.options.options[option.place]}
        return option.kind != "whole" or len(costs) > 1

    def _change(self, option: Option, other: Option | None) -> str:
        if other is None:
            return "-"
        cost, damage = (getattr(other, name) - getattr(option, name) for name in (self.quantity, "damage"))
        changes = [("-" if cost < 0 else "+") + FORMATS[self.quantity](abs(cost))]
        changes += [("-" if damage < 0 else "+") + numbers.significant(abs(damage))]
        return f"{_short(other)}: {', '.join(changes)}"


FORMS = {"collaborative": "{} shared", "fixed": "size {}", "grouped": "{} KV", "latent": "latent {}"}
"""Conversions in words, with the first of their sizes."""


def _short(option: Option) -> str:
    """Return a form in words."""
    count = option._replace(to="").told
    name, _, sizes = option.to.partition(":")
    return f"{count}, {FORMS[name].format(sizes.split(',')[0].split('=')[1])}" if name else count
