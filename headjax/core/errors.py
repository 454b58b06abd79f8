"""Errors a user can meet: each is one line that names the field or the file."""

from __future__ import annotations


class HeadjaxError(ValueError):
    """Something the user asked for cannot be done. The command line prints it and exits with code 2."""


class ConfigError(HeadjaxError):
    """A configuration field has a value that cannot be used; the message starts with the field's path."""


class ArgumentError(HeadjaxError, TypeError):
    """An argument of a public function has another type than it takes; the message names function and argument."""


class ParameterError(HeadjaxError):
    """A parameter array is missing, unexpected or wrongly shaped; the message names its path."""


class DataError(HeadjaxError):
    """A data file or a batch cannot be used; the message names the file or the batch key."""


class CheckpointError(HeadjaxError):
    """A model directory or a checkpoint is incomplete or belongs to something else."""


class KernelError(HeadjaxError):
    """An attention implementation cannot meet a request; the message says why and what could.

    Attributes:
        reason: the why alone.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = message if reason is None else reason


def require(condition: bool, field: str, message: str) -> None:
    """Raises `ConfigError("field: message")` unless the condition holds."""
    if not condition:
        raise ConfigError(f"{field}: {message}")


def require_positive(owner: object, *fields: str) -> None:
    """Raises `ConfigError` unless each named attribute of `owner` is an integer of at least one."""
    for field in fields:
        value = getattr(owner, field)
        require(
            isinstance(value, int) and not isinstance(value, bool) and value >= 1,
            field,
            f"must be an integer of at least 1, got {value!r}",
        )


def require_rate(owner: object, *fields: str) -> None:
    """Raises `ConfigError` unless each named attribute of `owner` is a probability below one."""
    for field in fields:
        value = getattr(owner, field)
        require(
            isinstance(value, int | float) and 0.0 <= value < 1.0,
            field,
            f"must be at least 0 and below 1, got {value!r}",
        )
