"""Model directories.

A model directory holds `config.json`, `params/` (Orbax), `tokenizer/`, `files/`, `history.json` and the record of their
checksums, `checksums.json` (see `headjax.storage.directories`), with which they are compared whenever they are read.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from headjax.core import tensors as declared
from headjax.core.errors import CheckpointError, ConfigError, DataError
from headjax.core.serialize import foreign_modules, from_data, to_data
from headjax.core.tensors import Params
from headjax.models.config import ModelConfig
from headjax.storage.arrays import read_params, write_params
from headjax.storage.directories import (
    RECORD,
    Layout,
    check_checksums,
    check_model,
    read_recorded,
    write_checksums,
    write_directory,
)
from headjax.storage.files import json_text, parse_json
from headjax.storage.paths import check_name, files_below, path_of
from headjax.tokenizers.tokenizer import Tokenizer
from headjax.version import __version__

FILES = "files"
"""Folder of the files that came with a model."""

_NAMES = frozenset({"config.json", "history.json", "params", "tokenizer", FILES, RECORD})
LAYOUT = Layout("history.json", _NAMES)
"""Content of a model directory."""


def save(
    path: str | Path,
    config: ModelConfig,
    params: Params,
    history: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer | None,
    files: Mapping[str, bytes],
) -> None:
    """Write a model directory, see `headjax.Model.save`."""
    check_name(path)
    declared.check(config.tensors(), params)
    declared.require_finite(params)
    described: dict[str, Any] = {"headjax": __version__, "model": to_data(config)}
    if modules := sorted(foreign_modules(config)):
        described["modules"] = modules

    def write(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(described, indent=2) + "\n")
        (folder / "history.json").write_text(json_text(list(history), indent=2) + "\n")
        if tokenizer is not None:
            tokenizer.save(folder / "tokenizer")
        for name, data in files.items():
            (folder / FILES / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / FILES / name).write_bytes(data)
        write_params(params, folder / "params")
        write_checksums(folder)

    write_directory(path_of(path), write, LAYOUT)


class ModelFolder:
    """A model directory, opened: its documents are read once each, its arrays whenever a model is asked for."""

    def __init__(self, path: str | Path) -> None:
        self.path = path_of(path)

    def read(self, mesh: Mesh | None = None) -> tuple[Any, ...]:
        """Return the arguments of the `Model` that it holds, see `headjax.load`."""
        config, past = self.config, self._json("history.json")
        check_checksums(self.path)
        place = self.path / "tokenizer"
        tokenizer = Tokenizer.load(place) if place.is_dir() else None
        params = read_params(config.tensors(), self.path / "params", mesh)
        files = {name: (self.path / FILES / name).read_bytes() for name in files_below(self.path / FILES)}
        return config, params, tuple(past), tokenizer, files

    def _json(self, name: str) -> Any:
        try:
            return parse_json(read_recorded(self.path, name), str(self.path / name))
        except DataError as error:
            raise CheckpointError(str(error)) from None

    @functools.cached_property
    def config(self) -> ModelConfig:
        folder, file = self.path, self.path / "config.json"
        check_model(folder)
        data = self._json("config.json")
        if isinstance(data, dict) and "model_type" in data:
            raise CheckpointError(f"{folder}: a Hugging Face directory; headjax.from_huggingface reads it")
        if not isinstance(data, dict) or "model" not in data:
            raise CheckpointError(f"{file}: not a headjax config (it has no field 'model')")
        try:
            return from_data(ModelConfig, data["model"], str(file))  # type: ignore[type-abstract]
        except ConfigError as error:
            # What a directory says is not imported: whoever wrote it could name any module.
            recorded = data["modules"] if isinstance(data.get("modules"), list) else []
            missing = [name[:80] for name in map(str, recorded) if name not in sys.modules]
            if not missing:
                raise
            unknown = f"written with {', '.join(missing)}: import it, by --import {missing[0]}"
            raise ConfigError(f"{error}; {unknown}") from None
