"""Short texts of results."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH = 90
"""Longest text of a field."""


def brief(result: Any) -> str:
    """Return a named tuple as its name and one line for each field."""
    return "\n".join([type(result).__name__, *(f"  {name}: {_line(own)}" for name, own in result._asdict().items())])


def _line(value: Any) -> str:
    """Return a value in one line: of arrays the shapes, of many entries how many and the first ones."""
    if isinstance(value, str | int | float):
        return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
    if hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}"
    if hasattr(value, "_asdict"):
        numbers = (f"{name} {_line(own)}" for name, own in value._asdict().items() if isinstance(own, int | float))
        return ", ".join([type(value).__name__, *numbers])
    if not isinstance(value, Mapping | Sequence):
        return str(value) if hasattr(value, "parse") else type(value).__name__
    first = list(itertools.islice(value.items() if isinstance(value, Mapping) else value, 8))
    words = [" ".join(map(_inner, one)) if isinstance(value, Mapping) else _inner(one) for one in first]
    text = f"{len(value)}: {', '.join(words)}" if words else "none"
    whole = len(words) == len(value) and len(text) <= WIDTH
    return text if whole else f"{text[: WIDTH - 4].rstrip(' ,')} ..."


def _inner(value: Any) -> str:
    """Return an entry of many in one line: of entries in turn how many, of a named tuple the first field."""
    if isinstance(value, Mapping):
        return f"of {len(value)}"
    return _line(value[0] if hasattr(value, "_asdict") else value)
