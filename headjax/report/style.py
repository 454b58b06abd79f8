"""The style of plots: one look for all, with colours for colour-blind readers, too."""

from __future__ import annotations

import contextlib
import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure

INK = "#1f2328"
MUTED = "#6e7781"
GRID = "#d8dee4"
PAPER = "#fefefe"
"""Text, secondary marks, grid lines and background."""

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9")
"""Okabe and Ito's colours (Color Universal Design, 2008) less black and yellow, which a background can hide."""

SEQUENTIAL = "cividis"
DIVERGING = "PuOr_r"
"""Colour maps for values of one sign and of two; both read the same with every kind of colour blindness."""

WIDTH = 5.6
"""Inches of an ordinary plot: small enough that its text is readable on a phone."""

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1)), (0, (8, 2)))

_PARAMETERS: Any = {
    "text.parse_math": False,  # a label may hold any character, dollars included
    "text.color": INK,
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.titlepad": 10,
    "axes.labelsize": 12,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": PAPER,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "axes.unicode_minus": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "legend.frameon": False,
    "legend.fontsize": 11,
    "legend.handlelength": 2.6,
    "lines.linewidth": 2.0,
    "lines.markersize": 5.5,
    "hatch.linewidth": 0.7,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
}


class Look(NamedTuple):
    """How a series is drawn."""

    color: str
    marker: str
    linestyle: Any
    fill: str

    @property
    def drawn(self) -> dict[str, Any]:
        """Arguments of Matplotlib's `plot`."""
        marks = {"marker": self.marker, "markerfacecolor": self.fill, "markeredgewidth": 1.2}
        return {"color": self.color, "linestyle": self.linestyle, **marks}


class Plot(NamedTuple):
    """A finished plot."""

    figure: Figure
    alt: str

    def svg(self) -> str:
        """The plot as an SVG document."""
        return self._save("svg", 200).decode()

    def png(self, dpi: int = 200) -> bytes:
        """The plot as a PNG file of this many pixels an inch."""
        return self._save("png", dpi)

    def _repr_png_(self) -> bytes:
        """Return the picture that a notebook shows."""
        return self.png(dpi=100)

    def _save(self, form: str, dpi: int) -> bytes:
        buffer = io.BytesIO()
        with style():
            self.figure.savefig(buffer, format=form, dpi=dpi)
        return buffer.getvalue()


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Matplotlib's defaults plus this style, in place of the user's own settings, which come back at the end."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        # A token in a script the font lacks prints as a box, which is no reason to stop.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_PARAMETERS)
        yield


def look(index: int) -> Look:
    """The look of the series at this place; after six, colours come again with other markers and dashes."""
    cycle, place = divmod(index, len(PALETTE))
    shifted = place + cycle
    marker, dashes = _MARKERS[shifted % len(_MARKERS)], _DASHES[shifted % len(_DASHES)]
    return Look(PALETTE[place], marker, dashes, PAPER if cycle % 2 else PALETTE[place])


def new_figure(width: float = WIDTH, height: float = 3.8) -> Figure:
    """An empty figure of this many inches; call within `style()`."""
    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", w_pad=0.06, h_pad=0.06)
    return figure


def wrap(text: str, width: float, letters: float = 8.2) -> str:
    """The text broken into lines that fit this many inches, of so many letters each."""
    return "\n".join(textwrap.wrap(text, max(12, int(width * letters)))) if text else ""


def legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend under the axes, where it hides no data: as many columns as have room for the longest label."""
    most = max(map(len, labels))
    columns = max(1, min(len(labels), int(figure.get_figwidth() / (0.085 * most + 0.75))))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
