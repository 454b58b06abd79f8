"""Pruning curves: metrics against the number of heads removed, by gates alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax

from headjax.core.progress import Update
from headjax.heads import gates as head_gates
from headjax.heads.ordering import Order
from headjax.models.config import ModelConfig

Evaluate = Callable[[dict[str, jax.Array]], Mapping[str, float]]
"""From gates to metrics by name."""


class Point(NamedTuple):
    """One point of a pruning curve.

    Attributes:
        removed: number of heads removed.
        metrics: the metrics without them.
    """

    removed: int
    metrics: Mapping[str, float]


def pruning_curve(
    config: ModelConfig, order: Order, counts: Sequence[int], evaluate: Evaluate, progress: Update | None = None
) -> list[Point]:
    """Metrics with the first heads of an order removed, for each number of them.

    Removal is by gates, an argument of the model, so that the whole curve shares one compilation.

    Args:
        config: the architecture.
        order: heads in the order of their removal.
        counts: numbers of heads to remove (`headjax.heads.pruning`); those beyond the order's length are left out.
        evaluate: the metrics at given gates, `[layers, max_heads]` by head stack.
        progress: called after every point with the number of points done and the metrics.
    """
    points = []
    for count in counts:
        if count > len(order):
            continue
        points.append(Point(count, evaluate(head_gates.without(config, order[:count]))))
        if progress is not None:
            progress(len(points), points[-1].metrics)
    return points
