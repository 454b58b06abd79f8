"""Values that a config file or an option spells as text."""

from __future__ import annotations

import ast
import types
import warnings
from typing import Any

from headjax.core.errors import ConfigError
from headjax.core.fields import check_value, unknown_name


def parse_arguments(argument: str, of: str = "config", /, **defaults: Any) -> types.SimpleNamespace:
    """Reads `a=1,b=two,smoke` into the types of the defaults; a bare name sets a boolean."""
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
