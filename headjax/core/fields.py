"""Fields of configs: types with bounds, declared once with the field and compared whenever a config is built.

Static type checkers see `int` and `float`. Values may also be spelled as text, in a config file or an option.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import math
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple

from headjax.core.errors import ConfigError, require


class Bound(NamedTuple):
    """Values that a field can have."""

    text: str
    holds: Callable[[Any], bool]


INTEGER_MAX = 2**63 - 1
"""Largest integer of a field: no array, counter or seed takes a larger one."""

FLOAT32_MAX = 3.4e38
"""Largest number of a field: larger ones are infinite in the arrays that they end in."""

LISTED_MAX = 10_000
"""Most layers of a stack, heads of a layer, rounds and repeats, which are listed one by one."""

Size = Annotated[int, Bound("must be an integer of at least 1", lambda value: value >= 1)]
Count = Annotated[int, Bound("must not be negative", lambda value: value >= 0)]
Listed = Annotated[Size, Bound(f"must be at most {LISTED_MAX:,}", lambda value: value <= LISTED_MAX)]

STEPS_END = 2**31
"""Number of training steps from which on optimizers, which count in int32, are lost."""

Steps = Annotated[Size, Bound("must be below 2**31", lambda value: value < STEPS_END)]
Positive = Annotated[float, Bound("must be positive", lambda value: value > 0)]
NotNegative = Annotated[float, Bound("must not be negative", lambda value: value >= 0)]

Rate = Annotated[
    float,
    Bound("must be at least 0 and below 1", lambda value: 0 <= value < 1),
    Bound("must be below 1 in float32", lambda value: value < 1 - 2.0**-25),
]
"""A probability below 1: of dropout, label smoothing, a decay of moments. Numbers within 2**-25 of 1 are 1 in float32,
and one less the rate, by which results are divided, is 0."""
Share = Annotated[float, Bound("must be from 0 to 1", lambda value: 0 <= value <= 1)]
Fraction = Annotated[float, Bound("must be within (0, 1)", lambda value: 0 < value < 1)]


class Checked:
    """Base of configs, whose fields are compared with their declared types and bounds.

    Integers are accepted where a number is expected, truth values are not; numbers must be finite.
    """

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for name, option in options_of(cls).items():
            check_value(option.type, name, getattr(self, name))


class Amount(NamedTuple):
    """A number, or a share of a whole."""

    number: float
    relative: bool

    def of(self, whole: float) -> float:
        return self.number * whole if self.relative else self.number


def read_amount(text: str, such_as: str, allowed: Callable[[Amount], bool] | None = None) -> Amount:
    """Return the number that `0.01` or `2e7` means, or the share that `60%` means."""
    relative = text.strip().endswith("%")
    try:
        number = float(text.strip().removesuffix("%"))
    except ValueError:
        number = -1.0
    amount = Amount(number / 100.0 if relative else number, relative)
    if not 0.0 <= number < math.inf or not (allowed is None or allowed(amount)):
        raise ValueError(f"expected a number such as {such_as}, got {text!r}")
    return amount


class Option(NamedTuple):
    """Declared type of a field, with its bounds, and its default or `dataclasses.MISSING`."""

    type: Any
    default: Any


@functools.cache
def options_of(cls: Any) -> Mapping[str, Option]:
    """Return the fields of a dataclass, or the keyword-only parameters of another class, by name."""
    if not dataclasses.is_dataclass(cls):
        hints = typing.get_type_hints(cls.__init__, include_extras=True)
        parameters = [
            each for each in inspect.signature(cls.__init__).parameters.values() if each.kind is each.KEYWORD_ONLY
        ]
        defaults = {
            each.name: dataclasses.MISSING if each.default is each.empty else each.default for each in parameters
        }
        return {name: Option(hints.get(name, Any), default) for name, default in defaults.items()}
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    made = {each.name: each.default_factory() for each in fields if each.default_factory is not dataclasses.MISSING}
    return {each.name: Option(hints[each.name], made.get(each.name, each.default)) for each in fields}


def check_value(expected: Any, field: str, value: Any) -> None:
    """Compare one value with a declared type and its bounds; functions, mappings and `Any` are not compared."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin is Annotated:
        check_value(arguments[0], field, value)
        for bound in expected.__metadata__:
            require(bound.holds(value), field, f"{bound.text}, got {shown(value)}")
    elif origin in (types.UnionType, typing.Union):
        if value is not None or type(None) not in arguments:
            check_value(arguments[0], field, value)
    elif origin is typing.Literal:
        listed = any(type(value) is type(choice) and value == choice for choice in arguments)
        require(listed, field, f"must be one of {', '.join(map(str, arguments))}, got {shown(value)}")
    elif origin is tuple:
        require(isinstance(value, tuple), field, f"expected a tuple, got {shown(value)}")
        items = itertools.repeat(arguments[0]) if arguments[-1] is Ellipsis else arguments
        for number, (item, entry) in enumerate(zip(items, value)):  # noqa: B905
            check_value(item, f"{field}[{number}]", entry)
    elif isinstance(expected, type) and expected is not Any:
        allowed = (int, float) if expected is float else expected
        right = isinstance(value, allowed) and (expected is bool or not isinstance(value, bool))
        require(right, field, f"expected {expected.__name__}, got {shown(value)}")
        if isinstance(value, int):
            require(abs(value) <= INTEGER_MAX, field, f"must be below 2**63 in size, got {shown(value)}")
        elif isinstance(value, float):
            require(abs(value) <= FLOAT32_MAX, field, f"must be finite in float32, got {shown(value)}")


def shown(value: Any) -> str:
    """A value as an error's line names it: short plain values as they are, anything else by its type."""
    cls = type(value)  # of other classes even `repr` may fail
    if cls is int and value.bit_length() > 200:
        return f"an int of {value.bit_length():,} bits"  # Python does not write the longest ones
    if value is None or cls in (bool, int, float, str):
        text = repr(value if cls is not str else value[:60])
        if len(text) < 60:
            return text
    return f"{'an' if cls.__name__[:1] in tuple('aeiouAEIOU') else 'a'} {cls.__name__}"


def unknown_name(what: str, name: object, known: Iterable[str]) -> str:
    """One line for an unknown name, with the nearest known one or all of them."""
    names, text = sorted(known), name if isinstance(name, str) else shown(name)
    name = text if len(text) <= 60 else f"{text[:60]}..."
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"
    return f"unknown {what} {name!r}; {hint}"


def parse_arguments(argument: str, of: str = "config", /, **defaults: Any) -> types.SimpleNamespace:
    """Read the argument of a config file, `a=1,b=two,smoke`, into the types of the defaults; a bare name is true.

    >>> headjax.parse_arguments("steps=20,smoke", steps=100, name="small", smoke=False)
    namespace(steps=20, name='small', smoke=True)
    """
    values = dict(defaults)
    for part in filter(None, argument.split(",")):
        name, equals, text = part.partition("=")
        if name not in defaults:
            raise ConfigError(f"{of} argument: {unknown_name('argument', name, defaults)}")
        kind = type(defaults[name])
        value = text if kind is str else read_literal(text) if equals else True
        if kind is str and not equals:
            raise ConfigError(f"{of} argument {name}: expected {name}=VALUE")
        check_value(kind, f"{of} argument {name}", value)
        values[name] = kind(value)
    return types.SimpleNamespace(**values)


def read_literal(text: str) -> Any:
    """Return the number, truth value, list or group that a typed text spells as Python does; else the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        with warnings.catch_warnings(action="ignore"):  # Python has opinions about the style of some texts
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
