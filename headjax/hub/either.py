"""Directories of either kind, headjax's or Hugging Face's: what commands read as MODEL and write as OUT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np

from headjax.core.progress import Progress, silent
from headjax.hub.exporting import to_huggingface
from headjax.hub.family import Family
from headjax.hub.importing import config_of, from_huggingface
from headjax.hub.onnx import example_batch
from headjax.hub.sentences import MODULES, is_cross_encoder, transformer_folder
from headjax.hub.table import InexpressibleError
from headjax.models.config import ModelConfig
from headjax.models.directory import ModelFolder
from headjax.models.model import Model, load
from headjax.storage.paths import files_below, path_of, size_of, source_of

Kind = Literal["headjax", "huggingface"]


def kind_of_directory(path: str | Path) -> Kind:
    """Return the kind of a model directory; an unreadable one counts as headjax's, whose reader raises the error."""
    folder = source_of(path)
    try:
        fields = json.loads((transformer_folder(folder) / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return "headjax"
    return "huggingface" if isinstance(fields, dict) and "model_type" in fields else "headjax"


def read_model(path: str | Path, *, progress: Progress = silent) -> Model:
    """Return the model of a directory."""
    return from_huggingface(path, progress=progress) if kind_of_directory(path) == "huggingface" else load(path)


def read_config(path: str | Path) -> ModelConfig:
    """Return the architecture of the model of a directory; no array is read."""
    return config_of(path) if kind_of_directory(path) == "huggingface" else ModelFolder(path).config


def write_model(
    model: Model, path: str | Path, kind: Kind, *, quantize: str | None = None, progress: Progress = silent
) -> str:
    """Write a directory, headjax's where no layout expresses the model; return a note for the user, empty for none."""
    if kind == "huggingface":
        try:
            exported = to_huggingface(model, path, quantize=quantize, progress=progress)
        except InexpressibleError as error:
            model.save(path)
            return f"written as headjax's directory: {error}"
        return "; ".join((f"layout {exported.layout}", *exported.notes))
    model.save(path)
    return ""


def max_difference(model: Model, directory: str | Path, *, family: Family | None = None) -> float:
    """Return the largest absolute difference between all outputs of a model and of the directory written from it."""
    batch = example_batch(model)
    ours, theirs = model(batch), from_huggingface(directory, family=family)(batch)
    pairs = [(getattr(ours, name), getattr(theirs, name)) for name in ("hidden", "logits", "embeddings")]
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs if a is not None)


def bytes_of_weights(path: str | Path) -> int:
    """Return the size of the files of the weights in a directory."""
    folder = source_of(path)
    if kind_of_directory(path) == "huggingface":
        return sum(size_of(file) for file in transformer_folder(folder).glob("*.safetensors"))
    return sum(size_of(folder / "params" / name) for name in files_below(folder / "params"))


def loading(path: str | Path) -> str:
    """Return the Python expression that loads a directory's model."""
    if kind_of_directory(path) == "headjax":
        return f"headjax.load({str(path)!r})"
    fields = json.loads((path_of(path) / "config.json").read_bytes())
    code = fields.get("auto_map", {})
    trusted = ", trust_remote_code=True" if code else ""
    modules = path_of(path) / MODULES
    files = {MODULES: modules.read_bytes()} if modules.is_file() else {}
    if is_cross_encoder(files, fields):
        return f"sentence_transformers.CrossEncoder({str(path)!r}{trusted})"
    if files:
        return f"sentence_transformers.SentenceTransformer({str(path)!r}{trusted})"
    name = fields["architectures"][0]
    auto = (auto for auto, place in code.items() if place.rpartition(".")[2] == name)
    return f"transformers.{next(auto, name)}.from_pretrained({str(path)!r}{trusted})"
