"""Plots for notebooks and scripts: each returns a `Plot`, which a notebook shows and `svg()` or `png()` write out."""

from __future__ import annotations

from collections.abc import Mapping

from headjax.heads.gates import from_values
from headjax.heads.head_id import HeadId
from headjax.models.model import Model
from headjax.report.curves import depth_curves, learning_curves, pruning_curves
from headjax.report.maps import attention_patterns, head_map
from headjax.report.scatter import importance_transfer, trade_off
from headjax.report.style import Plot

__all__ = [
    "Plot",
    "attention_patterns",
    "depth_curves",
    "head_map",
    "importance_transfer",
    "learning_curves",
    "pruning_curves",
    "score_map",
    "trade_off",
]


def score_map(model: Model, values: Mapping[HeadId, float], *, title: str, unit: str) -> Plot:
    """Draw one value a head as a colour, layers from top to bottom, one panel a head stack.

    Args:
        model: the model whose heads they are.
        values: a score by head, such as `score_heads(...).score("importance")`; heads without a value are hatched.
        title: heading of the plot.
        unit: name and unit of the score.

    Raises:
        DataError: there is no value, or one is infinite.
    """
    return head_map(from_values(model.config, values, fill=float("nan")), title=title, unit=unit)
