"""The fields of a Hugging Face `config.json`, read with one-line errors that name the file and the field."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from headjax.core.errors import CheckpointError, ConfigError
from headjax.core.fields import INTEGER_MAX, shown
from headjax.nn.projections import ActivationName
from headjax.tokenizers.files import read_object

T = TypeVar("T")

ACTIVATIONS: Mapping[str, ActivationName] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""Our name of each activation in Hugging Face configs."""

ACTIVATION_NAMES: Mapping[str, str] = {ours: theirs for theirs, ours in reversed(list(ACTIVATIONS.items()))}
"""The Hugging Face name of each of our activations."""

REQUIRED: Any = object()
"""The default of a field that has none: the config must give it."""


class Fields:
    """The fields of a config by name, null ones absent, and the names of the tensors beside it.

    `size` (positive), `integer`, `number` (finite), `flag`, `text` and `group` read a field of that type.
    """

    def __init__(
        self, data: Mapping[str, Any], file: str | Path = "config.json", tensors: Collection[str] = ()
    ) -> None:
        self.data = data
        self.file = file
        self.tensors = tensors

    @classmethod
    def load(cls, directory: Path, tensors: Collection[str] = ()) -> Fields:
        """Read the `config.json` of a directory."""
        file = directory / "config.json"
        if not file.exists():
            raise CheckpointError(f"{file}: missing")
        return cls(read_object(file), file, tensors)

    def having(self, data: Mapping[str, Any]) -> Fields:
        return Fields({**self.data, **data}, self.file, self.tensors)

    def error(self, name: str, message: str) -> ConfigError:
        return ConfigError(f"{self.file}: {name}: {message}")

    def has(self, name: str) -> bool:
        return self.data.get(name) is not None

    def size(self, name: str, default: int = REQUIRED) -> int:
        value = self._typed(name, int, default, "a positive integer")
        if value < 1:
            raise self.error(name, f"expected a positive integer, got {value}")
        return value

    def integer(self, name: str, default: int = REQUIRED) -> int:
        return self._typed(name, int, default, "an integer")

    def number(self, name: str, default: float = REQUIRED) -> float:
        value = self._typed(name, (int, float), default, "a number")
        if not math.isfinite(value):
            raise self.error(name, f"expected a finite number, got {value}")
        return float(value)

    def flag(self, name: str, default: bool = REQUIRED) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"expected true or false, got {value!r}")
        return value

    def text(self, name: str, default: str = REQUIRED) -> str:
        return self._typed(name, str, default, "a string")

    def group(self, name: str) -> Mapping[str, Any]:
        """Return an object; an absent one is empty."""
        return self._typed(name, Mapping, {}, "an object")

    def activation(self, name: str, default: str = REQUIRED) -> ActivationName:
        """Return an activation by our name; the default is a Hugging Face name."""
        theirs = self.text(name, default)
        if theirs not in ACTIVATIONS:
            raise self.error(name, f"unknown activation {theirs!r}; known: {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[theirs]

    def only(self, name: str, allowed: Iterable[Any], default: Any) -> None:
        """Raise `ConfigError` unless the field has one of the supported values."""
        allowed, value = list(allowed), self._get(name, default)
        if value not in allowed:
            raise self.unsupported(name, value, allowed)

    def no_others(self, *known: str) -> None:
        """Raise `ConfigError` if there is another field than these: what it means is not known."""
        for name, value in self.data.items():
            if name not in known and value not in (None, False, "", {}, []):
                raise self.error(name, f"{value!r} is not supported: no such field is known here")

    def unsupported(self, name: str, value: Any, supported: Iterable[Any]) -> ConfigError:
        return self.error(name, f"{value!r} is not supported; supported: {', '.join(map(repr, supported))}")

    def _typed(self, name: str, kind: Any, default: Any, expected: str) -> Any:
        value = self._get(name, default)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.error(name, f"expected {expected}, got {value!r}")
        if isinstance(value, int) and abs(value) > INTEGER_MAX:
            raise self.error(name, f"must be below 2**63 in size, got {shown(value)}")
        return value

    def _get(self, name: str, default: Any) -> Any:
        value = self.data.get(name)
        if value is None:
            if default is REQUIRED:
                raise self.error(name, "missing")
            return default
        return value
