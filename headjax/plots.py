"""Plots for notebooks and scripts: each returns a `Plot`, which a notebook shows and `svg()` or `png()` write out.

>>> model = headjax.demo_model()
>>> values = dict.fromkeys(headjax.all_heads(model.config), 1.0)
>>> headjax.plots.score_map(model, values, title="Ones", unit="none").svg()[:4]
'<?xm'
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headjax.heads.head_id import Values
from headjax.report.drawing import Plot, line_plot, pruning_curves
from headjax.report.maps import attention_patterns, head_map

__all__ = [
    "Plot",
    "attention_patterns",
    "head_map",
    "line_plot",
    "pruning_curves",
    "score_map",
]


def score_map(model: Any, values: Values, *, title: str, unit: str) -> Plot:
    """Draw one value a head as a colour, layers from top to bottom, one panel a head stack."""
    sizes: dict[str, tuple[int, int]] = {}
    for head in values:
        layers, heads = sizes.get(head.stack, (0, 0))
        sizes[head.stack] = max(layers, head.layer + 1), max(heads, head.head + 1)
    arrays = {stack: np.full(size, np.nan) for stack, size in sizes.items()}
    for head, value in values.items():
        arrays[head.stack][head.layer, head.head] = value
    return head_map(arrays, title=title, unit=unit)
