"""Build the model of a choice: heads and layers removed, layers converted, every map refitted from front to back."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from headjax.conversion.calibration import collect
from headjax.conversion.model import convert
from headjax.conversion.target import HeadLayer
from headjax.core.progress import Update
from headjax.heads.head_id import HeadId
from headjax.heads.pruning import prune
from headjax.heads.reconstruct import reconstruct
from headjax.heads.surgery import remove_layers
from headjax.heads.units import prune_units
from headjax.models.config import Batch
from headjax.models.model import Model, history_entry
from headjax.nn.state import Compute
from headjax.shrinking.choice import NO_LAYER, Choice
from headjax.shrinking.places import places_of


def build(
    model: Model,
    batches: Sequence[Batch],
    choice: Choice,
    *,
    compute: Compute = Compute(),
    progress: Update | None = None,
) -> Model:
    """Return the model that a choice describes, the decision in its history, by the old numbers of layers.

    Heads are removed and layers converted first. Then one walk through both models refits every map to the residual
    stream, so that it also repairs the losses of earlier layers; on the way feed-forwards lose their units
    (`headjax.reconstruct`). The smaller model goes this way without the layers that are removed, and those behind them
    make up for what the stream lacks.
    """
    chosen, gone, units, to = choice.options, list[HeadId](), dict[tuple[str, int], int](), dict[HeadLayer, str]()
    for place in places_of(model):
        option = chosen[place.name]
        if option.kind == NO_LAYER:
            continue
        if place.attention is None:
            units[place.at.stack, place.layer] = place.units - (option.units or 0)
            continue
        here = place.at.head_stack, place.layer
        gone += [HeadId(*here, head) for head in place.attention.ids if head not in (option.heads or ())]
        to |= {here: option.to} if option.to else {}
    smaller = prune(model, gone)
    if to:
        moments = collect(model, batches)
        smaller = convert(smaller, to, batches={here: moments[here] for here in to}).model
    changed = any(option.kind != "whole" for option in chosen.values())
    built = smaller
    if changed:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a ridge is what few tokens are for
            found = reconstruct(
                model, batches, (), feed_forward=True, units=units, converted=smaller, skipped=choice.removed,
                compute=compute, progress=progress,
            )  # fmt: skip
            built = remove_layers(prune_units(found.repaired, found.units), choice.removed)
    return built.replace(history=(*built.history, history_entry("shrink", **decision(choice))))


def decision(choice: Choice) -> dict[str, Any]:
    """Return a choice as JSON data."""
    layers = {
        name: {"form": option.told, "damage": option.damage, **({"heads": list(option.heads)} if option.heads else {})}
        for name, option in choice.options.items()
    }
    return {"damage": choice.damage, "bound": choice.bound, "costs": dict(choice.costs), "layers": layers}
