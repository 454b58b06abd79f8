"""Build the model of a choice: heads removed, layers converted, then every map refitted from front to back."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from headjax.conversion.calibration import collect
from headjax.core import history
from headjax.core.programs import forget
from headjax.core.progress import Update
from headjax.heads.reconstruct import reconstruct
from headjax.models.config import Batch
from headjax.models.model import Model
from headjax.nn.compute import Compute
from headjax.shrinking.choice import Choice
from headjax.shrinking.places import converted, places_of, without


def build(
    model: Model,
    batches: Sequence[Batch],
    choice: Choice,
    *,
    compute: Compute = Compute(),
    progress: Update | None = None,
) -> Model:
    """Return the model that a choice describes, the decision in its history.

    Heads are removed and layers converted first. Then one walk through both models refits every map to the residual
    stream, so that it also repairs the losses of earlier layers; on the way feed-forwards lose their units
    (`headjax.reconstruct`).
    """
    places = places_of(model)
    chosen = choice.options
    kept, units = {}, {}
    for place in places:
        option = chosen[place.name]
        if place.attention is None:
            units[place.at.stack, place.layer] = place.units - (option.units or 0)
        else:
            kept[place.name] = [place.attention.ids.index(head) for head in option.heads or ()]
    smaller = without(model, kept, places)
    to = {name: option.to for name, option in chosen.items() if option.to}
    if to:
        smaller = converted(smaller, to, places, collect(model, batches))
        forget()
    changed = any(option.kind != "whole" for option in chosen.values())
    built = smaller
    if changed:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a ridge is what few tokens are for
            built = reconstruct(
                model, batches, (), feed_forward=True, units=units, converted=smaller, compute=compute,
                progress=progress,
            ).model  # fmt: skip
    return built.replace(history=(*built.history, history.entry("shrink", **decision(choice))))


def decision(choice: Choice) -> dict[str, Any]:
    """Return a choice as JSON data."""
    layers = {
        name: {"form": option.told, "damage": option.damage, **({"heads": list(option.heads)} if option.heads else {})}
        for name, option in choice.options.items()
    }
    return {"damage": choice.damage, "bound": choice.bound, "costs": dict(choice.costs), "layers": layers}
