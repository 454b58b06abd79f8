"""The best single head of every layer (Michel et al. 2019, tables 2 and 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.heads.ablation import Ablation
from headjax.heads.head_id import HeadId
from headjax.heads.significance import Comparison, t_test


class BestHead(NamedTuple):
    """The head that stands in best for its whole layer.

    Attributes:
        head: the head.
        effect: the metric with only this head in the layer, minus that of the model itself.
        comparison: the paired test of this difference. The head was chosen as the best of its layer on the same
            examples, which flatters it; `evaluate_on` another ablation for an honest figure, as the paper's table 5.
    """

    head: HeadId
    effect: float
    comparison: Comparison


def best_heads(
    chosen_on: Ablation,
    metric: str = "loss",
    *,
    evaluate_on: Ablation | None = None,
    test: Callable[[np.ndarray, np.ndarray], Comparison] = t_test,
) -> list[BestHead]:
    """For every layer, the head that costs least when it is left alone.

    Args:
        chosen_on: ablation of mode `all-but-one`, by which heads are chosen.
        metric: `loss`, or a metric of which more is better.
        evaluate_on: another such ablation, of other examples, that gives the effects; None takes the same.
        test: a paired test of `headjax.heads.significance`.

    Raises:
        HeadjaxError: an ablation of another mode, an unknown metric, or ablations of other heads.
    """
    reported = chosen_on if evaluate_on is None else evaluate_on
    for ablation in (chosen_on, reported):
        if ablation.mode != "all-but-one":
            raise HeadjaxError(f"mode: best heads need the ablation all-but-one, got {ablation.mode!r}")
    if set(reported.heads) != set(chosen_on.heads):
        raise HeadjaxError("evaluate_on: ablates other heads than those to choose from")
    sign = 1.0 if metric == "loss" else -1.0
    best: dict[tuple[str, int], HeadId] = {}
    effects = chosen_on.effects(metric)
    for head in chosen_on.heads:
        current = best.setdefault((head.stack, head.layer), head)
        if sign * effects[head] < sign * effects[current]:
            best[head.stack, head.layer] = head
    changes, compared = reported.effects(metric), reported.compare(metric, test)
    return [BestHead(head, changes[head], compared[head]) for head in best.values()]
