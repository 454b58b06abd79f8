"""Conversions by name, and as the text `name:option=value,...` of the command line."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from headjax.conversion.collaborative import ToCollaborative
from headjax.conversion.deep import ToDeep
from headjax.conversion.grouped import ToGrouped
from headjax.conversion.latent import ToLatent
from headjax.conversion.per_head import ToFixed, ToGated
from headjax.conversion.target import Restructuring, Target
from headjax.core.errors import ConfigError
from headjax.core.fields import unknown_name

TARGETS: dict[str, type[Target | Restructuring]] = {
    target.name: target for target in (ToCollaborative, ToDeep, ToFixed, ToGated, ToGrouped, ToLatent)
}
"""Conversions by name."""


def parse_target(text: str) -> Target | Restructuring:
    """Return the conversion that `name` or `name:option=value,...` names."""
    name, _, options = text.partition(":")
    if name not in TARGETS:
        raise ConfigError(f"to: {unknown_name('formulation', name, TARGETS)}")
    cls = TARGETS[name]
    hints = typing.get_type_hints(cls)
    scalars = {f.name: f for f in dataclasses.fields(cls) if _scalar(hints[f.name]) is not None}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for part in options.split(",") if options else ():
        option, equals, value = part.partition("=")
        if option not in scalars:
            raise ConfigError(f"to: {name}: {_unknown(option, scalars)}")
        if not equals or option in values:
            raise ConfigError(f"to: {name}: {option}: expected once, as {option}=VALUE")
        values[option] = _read(f"to: {name}: {option}", hints[option], value)
    for option, field in scalars.items():
        if field.default is dataclasses.MISSING and option not in values:
            raise ConfigError(f"to: {name}: {option}: missing; write {name}:{option}=VALUE")
    return cls(**values)


def describe(target: Target) -> str:
    """Return the text that `parse_target` reads, with every option that text can hold."""
    hints = typing.get_type_hints(type(target))
    options = [
        f"{field.name}={getattr(target, field.name)}"
        for field in dataclasses.fields(target)  # type: ignore[arg-type]
        if _scalar(hints[field.name]) is not None and getattr(target, field.name) is not None
    ]
    return f"{target.name}:{','.join(options)}" if options else target.name


def _unknown(option: str, known: dict[str, Any]) -> str:
    return unknown_name("option", option, known) if known else f"unknown option {option!r}; it takes none"


def _scalar(hint: Any) -> Any:
    """Return the type that text is read as: int, float or a Literal; None for fields that text cannot set."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        inner = [_scalar(option) for option in typing.get_args(hint) if option is not type(None)]
        return inner[0] if len(inner) == 1 else None
    if hint in (int, float) or typing.get_origin(hint) is typing.Literal:
        return hint
    return None


def _read(where: str, hint: Any, text: str) -> Any:
    scalar = _scalar(hint)
    if typing.get_origin(scalar) is typing.Literal:
        choices = typing.get_args(scalar)
        if text not in choices:
            raise ConfigError(f"{where}: {unknown_name('choice', text, choices)}")
        return text
    try:
        return scalar(text)
    except ValueError:
        raise ConfigError(f"{where}: expected {scalar.__name__}, got {text!r}") from None
