"""Colour maps: one value a head (layers x heads), and attention probabilities (queries x keys)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from headjax.core import numbers
from headjax.core.errors import DataError
from headjax.report.drawing import DIVERGING, MUTED, PAPER, SEQUENTIAL, WIDTH, Plot, new_figure, style, wrap

_MOST_ANNOTATED = 100
_MOST_TOKENS = 24
_FITTING, _WIDE = 12, 9.0
"""Tokens whose names have room beside two panels of ordinary width, and inches of a figure with more."""
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def head_map(values: Mapping[str, Any], *, title: str, unit: str) -> Plot:
    """One value a head as a colour, layers from top to bottom, one panel a head stack, one colour scale for all.

    Values of one sign run from 0 in a sequential map, values of two signs from -m to m in a diverging one, so that 0
    is neutral. Up to 100 heads carry their number.
    """
    arrays = {stack: np.asarray(value, dtype=float) for stack, value in values.items()}
    if not arrays:
        raise DataError("values: no head stacks to draw")
    for stack, array in arrays.items():
        if array.ndim != 2 or not array.size:
            raise DataError(f"values[{stack!r}]: expected [layers, heads], got shape {array.shape}")
        if np.isinf(array).any():
            raise DataError(f"values[{stack!r}]: a value is infinite")
    present = np.concatenate([array[~np.isnan(array)] for array in arrays.values()])
    if not len(present):
        raise DataError("values: every head is missing")
    exponent = numbers.power_of_ten(present.tolist())
    arrays = {stack: array / 10.0**exponent for stack, array in arrays.items()}
    label = unit if not exponent else f"{unit}, ×10{str(exponent).translate(_SUPERSCRIPT)}"  # noqa: RUF001
    colors, limits = _colors(present / 10.0**exponent)
    layers = max(len(array) for array in arrays.values())
    heads = [array.shape[1] for array in arrays.values()]
    width = max(WIDTH, 1.8 + 0.32 * sum(heads) + 0.5 * len(heads))
    with style():
        figure = new_figure(width, 1.7 + min(0.42, 5.2 / layers) * max(layers, 3))
        panels = figure.subplots(1, len(arrays), squeeze=False, sharey=False, width_ratios=heads)[0]
        for axes, (stack, array) in zip(panels, arrays.items(), strict=True):
            _panel(axes, array, colors, limits, annotated=len(present) <= _MOST_ANNOTATED)
            axes.set(xlabel="Head", title=stack if len(arrays) > 1 else wrap(title, width - 1.0))
        panels[0].set_ylabel("Layer")
        if len(arrays) > 1:
            _headline(figure, wrap(title, width))
        _colorbar(figure, panels, colors, limits, label, pad=0.02)
        if any(np.isnan(array).any() for array in arrays.values()):
            absent = Patch(facecolor=PAPER, edgecolor=MUTED, hatch="////", linewidth=0)
            figure.legend([absent], ["no head"], loc="outside lower left")
    return Plot(figure, f"{title}: {unit} of {len(present)} heads as colours.")


def attention_patterns(
    probabilities: Any,
    tokens: Sequence[str],
    memory_tokens: Sequence[str] | None = None,
    *,
    names: Sequence[str] | None = None,
    title: str = "Attention patterns",
) -> Plot:
    """Attention probabilities of one sequence, one panel a head, a row for each query and a column for each key."""
    array = np.asarray(probabilities, dtype=float)
    keys = tokens if memory_tokens is None else memory_tokens
    if array.ndim != 3 or not array.size or array.shape[1:] != (len(tokens), len(keys)):
        raise DataError(f"probabilities: expected [heads, {len(tokens)}, {len(keys)}], got shape {array.shape}")
    labels = [f"head {head}" for head in range(len(array))] if names is None else list(names)
    if len(labels) != len(array):
        raise DataError(f"names: {len(labels)} for {len(array)} heads")
    longest = max(len(tokens), len(keys))
    labelled = longest <= _MOST_TOKENS
    columns = min(len(array), 2 if labelled else 3)
    rows = -(-len(array) // columns)
    width = _WIDE if labelled and longest > _FITTING else WIDTH
    colors, limits = colormaps[SEQUENTIAL], Normalize(0.0, 1.0)
    with style():
        figure = new_figure(width, 2.0 + rows * min(width / columns * len(tokens) / len(keys), 2 * width))
        figure.set_layout_engine("compressed")
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        grid[0, 0].invert_yaxis()
        if labelled:
            grid[0, 0].set_xticks(range(len(keys)), [_visible(token) for token in keys])
            grid[0, 0].set_yticks(range(len(tokens)), [_visible(token) for token in tokens])
        edges = (np.arange(len(keys) + 1) - 0.5, np.arange(len(tokens) + 1) - 0.5)
        for axes, pattern, name in zip(grid.flat, array, labels, strict=False):
            axes.pcolormesh(*edges, pattern, cmap=colors, norm=limits, rasterized=True)
            axes.set_title(name, fontsize=12)
            axes.set(xlabel="Key", ylabel="Query", aspect="equal")
            axes.grid(visible=False)
            axes.tick_params(labelsize=9)
            axes.tick_params(axis="x", rotation=90 if labelled else 0)
            axes.label_outer()
        for axes in grid.flat[len(array) :]:
            axes.remove()
        for axes in grid[-2, len(array) - columns * (rows - 1) :] if rows > 1 else ():
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("Key")
        _headline(figure, wrap(title, width))
        _colorbar(figure, figure.axes, colors, limits, "Probability", location="bottom", shrink=0.6)
    return Plot(figure, f"{title}: attention probabilities of {', '.join(labels)} over {len(keys)} keys.")


def _colors(present: np.ndarray) -> tuple[Colormap, Normalize]:
    largest = float(np.abs(present).max()) or 1.0
    if present.min() < 0 < present.max():
        return colormaps[DIVERGING], Normalize(-largest, largest)
    if present.min() < 0:
        return colormaps[SEQUENTIAL].reversed(), Normalize(-largest, 0.0)
    return colormaps[SEQUENTIAL], Normalize(0.0, largest)


def _panel(axes: Axes, array: np.ndarray, colors: Colormap, limits: Normalize, *, annotated: bool) -> None:
    layers, heads = array.shape
    edges = (np.arange(heads + 1) - 0.5, np.arange(layers + 1) - 0.5)
    axes.patch.set(hatch="////", edgecolor=MUTED, facecolor=PAPER)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.pcolormesh(*edges, np.ma.masked_invalid(array), cmap=colors, norm=limits, edgecolor=PAPER, linewidth=1.2)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.set_xticks(_ticks(heads))
    axes.set_yticks(_ticks(layers))
    for layer, head in np.ndindex(*array.shape) if annotated else ():
        if not np.isnan(array[layer, head]):
            red, green, blue, _ = colors(limits(array[layer, head]))
            dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.45
            value = float(array[layer, head])
            decimals = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2  # four characters have room
            text = f"{value:.{decimals}f}"
            axes.text(head, layer, text, ha="center", va="center", fontsize=10, color="white" if dark else "black")


def _ticks(count: int) -> range:
    return range(0, count, 1 if count <= 16 else -(-count // 12))


def _visible(token: str) -> str:
    """The token with its spaces and control characters made visible."""
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in token)
    return escaped.replace(" ", "·")


def _headline(figure: Figure, title: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")


def _colorbar(
    figure: Figure, panels: Sequence[Axes], colors: Colormap, limits: Normalize, label: str, **place: Any
) -> None:
    bar = figure.colorbar(ScalarMappable(limits, colors), ax=list(panels), aspect=25, **place)
    bar.outline.set_visible(False)
    bar.set_label(label)
