"""Seconds of a forward pass with fewer heads: a measured table, and the heads to remove for a speed-up."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from headjax.core.errors import HeadjaxError, require
from headjax.core.timing import Timing, time_in_turns
from headjax.heads.head_id import HeadId
from headjax.heads.ordering import Order
from headjax.heads.pruning import prune
from headjax.models.config import Batch, ModelConfig, Options
from headjax.models.inputs import device_batch
from headjax.models.model import Model, forward

POINTS = 4
"""Number of intervals between no heads and all; their ends are measured, and the table is linear in between."""


class LatencyTable(NamedTuple):
    """Seconds of a forward pass as a sum over layers.

    Attributes:
        base: Seconds without any head.
        layers: By head stack, `[max_heads + 1]` seconds that one layer with 0, 1, ... heads adds.
    """

    base: float
    layers: Mapping[str, np.ndarray]

    def seconds(self, config: ModelConfig, removed: Iterable[HeadId] = ()) -> float:
        """Return the seconds of a forward pass of the model without these heads."""
        gone = set(removed)
        total = self.base
        for stack, attentions in config.attentions().items():
            for layer, attention in enumerate(attentions):
                left = sum(HeadId(stack, layer, head) not in gone for head in attention.ids)
                total += float(self.layers[stack][left])
        return total


def measure_latency(model: Model, batch: Batch, *, repeats: int = 9) -> LatencyTable:
    """Time the model with all its heads, and with fewer in every layer of one head stack at a time.

    Args:
        model: Model to time.
        batch: Inputs; the table holds for their shape.
        repeats: Timed calls of each model; medians count, and the models take turns.
    """
    config = model.config
    counts, models = {}, {"whole": model}
    for stack, attentions in config.attentions().items():
        most = max(attention.num_heads for attention in attentions)
        counts[stack] = sorted({round(most * point / POINTS) for point in range(POINTS)})
        for count in counts[stack]:
            models[f"{stack} {count}"] = prune(model, _beyond(config, stack, count))
    timings = time_forward(models, batch, repeats=repeats)
    whole = timings["whole"].median
    layers = {}
    for stack, attentions in config.attentions().items():
        most = max(attention.num_heads for attention in attentions)
        seconds = [*(timings[f"{stack} {count}"].median for count in counts[stack]), whole]
        # A model with more heads is not faster; a measurement that says so is noise.
        rising = np.maximum.accumulate(np.interp(np.arange(most + 1), [*counts[stack], most], seconds))
        layers[stack] = (rising - rising[0]) / len(attentions)
    table = LatencyTable(0.0, layers)
    return table._replace(base=max(whole - table.seconds(config), 0.0))


def heads_for_speed_up(
    config: ModelConfig, order: Order, table: LatencyTable, speed_up: float, stops: Sequence[int] | None = None
) -> Order:
    """Return the fewest heads from the front of the order that make the model this many times as fast, by the table.

    Args:
        config: Architecture of the model.
        order: Heads in the order of their removal.
        table: Result of `measure_latency`.
        speed_up: Factor of at least 1.
        stops: Numbers of heads that may be gone, rising from 0 (`headjax.heads.ordering.ends`); None is every number.

    Raises:
        HeadjaxError: The speed-up is below 1, or removing all these heads gives less.
    """
    require(speed_up >= 1.0, "speed_up", f"must be at least 1, got {speed_up}")
    whole = table.seconds(config)
    for count in range(len(order) + 1) if stops is None else stops:
        if whole >= speed_up * table.seconds(config, order[:count]):
            return order[:count]
    most = whole / table.seconds(config, order)
    raise HeadjaxError(f"speed_up: {speed_up:g} asked for, removing all {len(order)} heads gives {most:.3g}")


def _beyond(config: ModelConfig, stack: str, count: int) -> list[HeadId]:
    """Return the heads of a head stack after the first `count` of each layer."""
    return [
        HeadId(stack, layer, head)
        for layer, attention in enumerate(config.attentions()[stack])
        for head in attention.ids[count:]
    ]


def time_forward(models: Mapping[str, Model], batch: Batch, *, repeats: int = 9) -> dict[str, Timing]:
    """Return the seconds of one forward pass of each model on the same batch; the models take turns.

    Args:
        models: Models by name.
        batch: Arrays by Hugging Face's names, without labels.
        repeats: Timed calls of each model.
    """
    calls = {
        name: functools.partial(forward, model.config, model.params, device_batch(model.config, batch), Options())
        for name, model in models.items()
    }
    return time_in_turns(calls, repeats=repeats, warmup=2)
