"""Measurements kept in a file as they are made, so that a stopped study continues."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from headjax.storage.files import write_file
from headjax.storage.paths import path_of


def key_of_study(described: Any, arrays: Any) -> str:
    """Return the key of a measurement, another one for other settings or any other number."""
    digest = hashlib.sha256(repr(described).encode())
    for path, array in jax.tree.leaves_with_path(arrays):
        digest.update(jax.tree_util.keystr(path).encode() + np.asarray(array).tobytes())
    return digest.hexdigest()


class Kept:
    """Measurements by name, as JSON data."""

    def __init__(self, path: str | Path | None = None, key: str = "") -> None:
        """Read the measurements of an earlier study."""
        self._path, self._key = None if path is None else path_of(path), key
        self.found: dict[str, Any] = {}
        if self._path is not None and self._path.is_file():
            try:
                data = json.loads(self._path.read_text())
                if data["key"] == key:
                    self.found = dict(data["found"])
            except (ValueError, TypeError, KeyError):
                pass

    def __call__(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return the measurement of a name; measure it, and write the file, if nothing was."""
        if name not in self.found:
            self.found[name] = json.loads(json.dumps(measure()))
            if self._path is not None:
                write_file(self._path, json.dumps({"key": self._key, "found": self.found}).encode())
        return self.found[name]

    def remove(self) -> None:
        """Remove the file."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
