"""The fields of a Hugging Face `config.json`, read with one-line errors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from headjax.core.errors import CheckpointError, ConfigError
from headjax.models.feed_forward import ActivationName

T = TypeVar("T")

ACTIVATIONS: Mapping[str, ActivationName] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""Our names of their activations."""

ACTIVATION_NAMES: Mapping[str, str] = {ours: theirs for theirs, ours in reversed(list(ACTIVATIONS.items()))}
"""Their names of our activations."""

_REQUIRED: Any = object()


class Fields:
    """A config's fields by name; errors start with the file and name the field."""

    def __init__(self, data: Mapping[str, Any], file: str | Path = "config.json") -> None:
        self.data = data
        self.file = file

    @classmethod
    def load(cls, directory: Path) -> Fields:
        """Reads a directory's `config.json`.

        Raises:
            CheckpointError: there is none, or it is no JSON object.
        """
        file = directory / "config.json"
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"{file}: missing") from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file}: cannot be read ({' '.join(str(error).split())})") from None
        if not isinstance(data, dict):
            raise CheckpointError(f"{file}: not a JSON object")
        return cls(data, file)

    def error(self, name: str, message: str) -> ConfigError:
        """The error of a field."""
        return ConfigError(f"{self.file}: {name}: {message}")

    def size(self, name: str, default: int = _REQUIRED) -> int:
        """A positive integer; null is the default."""
        value = self._typed(name, int, default, "a positive integer")
        if value < 1:
            raise self.error(name, f"expected a positive integer, got {value}")
        return value

    def integer(self, name: str, default: int = _REQUIRED) -> int:
        """An integer; null is the default."""
        return self._typed(name, int, default, "an integer")

    def number(self, name: str, default: float = _REQUIRED) -> float:
        """A number; null is the default."""
        return float(self._typed(name, (int, float), default, "a number"))

    def flag(self, name: str, default: bool = _REQUIRED) -> bool:
        """True or false; null is the default."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"expected true or false, got {value!r}")
        return value

    def text(self, name: str, default: str = _REQUIRED) -> str:
        """A string; null is the default."""
        return self._typed(name, str, default, "a string")

    def group(self, name: str) -> Mapping[str, Any]:
        """An object; absent or null is empty."""
        return self._typed(name, Mapping, {}, "an object")

    def activation(self, name: str, default: str) -> ActivationName:
        """An activation, by our name."""
        theirs = self.text(name, default)
        if theirs not in ACTIVATIONS:
            raise self.error(name, f"unknown activation {theirs!r}; known: {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[theirs]

    def only(self, name: str, allowed: Iterable[Any], default: Any) -> None:
        """Raises `ConfigError` unless the field has one of the values that are supported."""
        allowed, value = list(allowed), self._get(name, default)
        if value not in allowed:
            raise self.error(name, f"{value!r} is not supported; supported: {', '.join(map(repr, allowed))}")

    def _typed(self, name: str, kind: Any, default: Any, expected: str) -> Any:
        value = self._get(name, default)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.error(name, f"expected {expected}, got {value!r}")
        return value

    def _get(self, name: str, default: Any) -> Any:
        value = self.data.get(name)
        if value is None:
            if default is _REQUIRED:
                raise self.error(name, "missing")
            return default
        return value
