"""Conversions by name, and as the text `name:option=value,...` of the command line."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from headjax.conversion.collaborative import ToCollaborative
from headjax.conversion.deep import ToDeep
from headjax.conversion.grouped import ToGrouped
from headjax.conversion.latent import ToLatent
from headjax.conversion.per_head import ToFixed
from headjax.conversion.target import Target
from headjax.core.configuration import read_literal
from headjax.core.described import groups_in
from headjax.core.errors import ConfigError
from headjax.core.fields import check_value, unknown_name

TARGETS: dict[str, type[Target | ToDeep]] = {
    target.name: target for target in (ToCollaborative, ToDeep, ToFixed, ToGrouped, ToLatent)
}
"""Conversions by name."""


def parse_target(text: str) -> Target | ToDeep:
    """Return the conversion that `name` or `name:option=value,...` names."""
    name, _, options = text.partition(":")
    if name not in TARGETS:
        raise ConfigError(f"to: {unknown_name('formulation', name, TARGETS)}")
    fields = _options(TARGETS[name])
    hints = typing.get_type_hints(TARGETS[name], include_extras=True)
    values: dict[str, Any] = {}
    for part in options.split(",") if options else ():
        option, equals, value = part.partition("=")
        if option not in fields:
            raise ConfigError(f"to: {name}: {unknown_name('option', option, fields)}")
        if not equals or option in values:
            raise ConfigError(f"to: {name}: {option}: expected once, as {option}=VALUE")
        values[option] = read_literal(value)
        check_value(hints[option], f"to: {name}: {option}", values[option])
    for option, field in fields.items():
        if field.default is dataclasses.MISSING and option not in values:
            raise ConfigError(f"to: {name}: {option}: missing; write {name}:{option}=VALUE")
    return TARGETS[name](**values)


def describe(target: Target) -> str:
    """Return the text that `parse_target` reads, with every option that text can hold."""
    values = {name: getattr(target, name) for name in _options(type(target))}
    options = [f"{name}={value}" for name, value in values.items() if value is not None]
    return f"{target.name}:{','.join(options)}" if options else target.name


def _options(cls: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields that text can set: those that hold no group of fields."""
    hints = typing.get_type_hints(cls)
    return {field.name: field for field in dataclasses.fields(cls) if not groups_in(hints[field.name])}
