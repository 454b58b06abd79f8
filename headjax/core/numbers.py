"""Numbers as people read them: three significant digits, a unit, a dash for no value; results in a few lines."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MISSING = "–"  # noqa: RUF001
"""Stands where a value is absent or not a number."""

_METRIC = ("", "K", "M", "G", "T", "P", "E")

Format = Callable[[Any], str]
"""From a table's value to its text."""


def _of_numbers(form: Callable[[float], str]) -> Callable[[float | None], str]:
    """Return a format that also shows absent and infinite values."""

    @functools.wraps(form)
    def formatted(value: float | None) -> str:
        if value is None or math.isnan(value):
            return MISSING
        if math.isinf(value):
            return "∞" if value > 0 else "-∞"
        return form(value)

    return formatted


def text(value: object) -> str:
    """The value as it prints, nothing for None."""
    return "" if value is None else str(value)


@_of_numbers
def count(value: float) -> str:
    """A number of things: `999`, `12.3 K`, `1.23 M`, `7.24 B` (thousand millions)."""
    return _scaled(value, ("", "K", "M", "B", "T"), "")


@_of_numbers
def flops(value: float) -> str:
    """Floating-point operations: `45.6 GFLOP`, in powers of 1000."""
    return _scaled(value, _METRIC, "FLOP")


@_of_numbers
def size(value: float) -> str:
    """Bytes: `512 B`, `12.3 KB`, `1.23 GB`, in powers of 1000."""
    return _scaled(value, _METRIC, "B")


@_of_numbers
def duration(seconds: float) -> str:
    """A time given in seconds: `123 µs`, `12.3 ms`, `1.23 s`, `4 min 05 s`, `1 h 02 min`."""
    if seconds < 0:
        return "-" + duration(-seconds)
    for unit, scale in (("µs", 1e6), ("ms", 1e3), ("s", 1.0)):
        rounded = _round(seconds * scale)
        if rounded < (60 if unit == "s" else 1000):
            return f"{_digits(rounded)} {unit}"
    total = round(seconds)
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


@_of_numbers
def percent(fraction: float) -> str:
    """A fraction as a percentage with one decimal: 0.421 is `42.1%`."""
    return f"{100 * float(fraction):.1f}%"


@_of_numbers
def significant(value: float) -> str:
    """Three significant digits: `0.00123`, `12.3`, `1.23e+07`."""
    rounded = _round(value)
    return f"{rounded:.2e}" if rounded and not 1e-4 <= abs(rounded) < 1e6 else _digits(rounded)


def number(value: float | None) -> str:
    """A count to the unit, any other number to three digits: `1,088,256`, `0.123`."""
    return f"{value:,}" if isinstance(value, int) else significant(value)


def fixed(digits: int) -> Format:
    """A format with this many decimals: `fixed(2)(9.876)` is `9.88`."""
    return _of_numbers(lambda value: f"{float(value):.{digits}f}")


def tick(form: Format) -> Format:
    """The format for the marks of an axis: `1,400` below a hundred thousand, `1.4 M` and `20%` without idle zeros."""

    def formatted(value: float) -> str:
        if form is count and abs(value) < 1e5:
            return f"{float(f'{value:.6g}'):,.10g}"
        shortened = re.sub(r"(\.\d*?)0+(?=\D|$)", r"\1", form(value))
        return re.sub(r"\.(?=\D|$)", "", shortened)

    return formatted


def power_of_ten(values: Sequence[float]) -> int:
    """The exponent, a multiple of three, to take out of values so that the largest reads as 0.1 to 999."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if largest == 0 or 0.1 <= largest < 1000:
        return 0
    return 3 * math.floor(math.log10(_round(largest)) / 3)


def _scaled(value: float, prefixes: tuple[str, ...], unit: str) -> str:
    if abs(value) < 1000 and value == int(value):
        return f"{int(value)} {unit}".rstrip()
    rounded, power = _round(value), 0
    while abs(rounded) >= 1000 and power < len(prefixes) - 1:
        rounded, power = rounded / 1000, power + 1
    return f"{_digits(rounded)} {prefixes[power]}{unit}".rstrip()


def _round(value: float) -> float:
    """The nearest number of three significant digits, so that 999.9 changes its prefix and not its width."""
    return float(f"{value:.2e}")


def _digits(rounded: float) -> str:
    if rounded == 0:
        return "0"
    return f"{rounded:.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"


WIDTH = 90
"""Longest text of a field."""


def brief(result: Any) -> str:
    """Return a named tuple as its name and one line for each field."""
    fields = (f"  {name}: {_line(value)}" for name, value in result._asdict().items())
    return "\n".join([type(result).__name__, *fields])


def _line(value: Any) -> str:
    """Return a value in one line: of arrays the shapes, of many entries how many and the first ones."""
    if isinstance(value, str | int | float):
        return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
    if hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}"
    if hasattr(value, "_asdict"):
        numbers = (
            f"{name} {_line(entry)}" for name, entry in value._asdict().items() if isinstance(entry, int | float)
        )
        return ", ".join([type(value).__name__, *numbers])
    if not isinstance(value, Mapping | Sequence):
        return str(value) if hasattr(value, "parse") else type(value).__name__
    first = list(itertools.islice(value.items() if isinstance(value, Mapping) else value, 8))
    words = [" ".join(map(_inner, entry)) if isinstance(value, Mapping) else _inner(entry) for entry in first]
    text = f"{len(value)}: {', '.join(words)}" if words else "none"
    complete = len(words) == len(value) and len(text) <= WIDTH
    return text if complete else f"{text[: WIDTH - 4].rstrip(' ,')} ..."


def _inner(value: Any) -> str:
    """Return an entry of many in one line: of entries in turn how many, of a named tuple the first field."""
    if isinstance(value, Mapping):
        return f"of {len(value)}"
    return _line(value[0] if hasattr(value, "_asdict") else value)
