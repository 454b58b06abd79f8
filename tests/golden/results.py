"""Golden results in files of arrays: how they are drawn, kept and compared."""

import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

FOLDER = Path(__file__).parent / "engine"

CLOSE = 1e-5
"""Largest difference of a result, as a share of its array's largest value: another instruction set makes 6e-6."""


def drawn(name: str, shape: list[int]) -> np.ndarray:
    """A tensor drawn by its name; scales of normalisations lie about 1."""
    noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
    scale = len(shape) == 1 and name.endswith("weight")
    return (1 + 0.2 * noise) if scale else 0.2 * noise


def write_directory(config: Mapping[str, Any], shapes: Mapping[str, list[int]], folder: Path) -> Path:
    """Write the Hugging Face directory of a tiny model."""
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: drawn(name, shape) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def by_head(values: Mapping[Any, Any]) -> np.ndarray:
    """Values in the order of their heads."""
    return np.array([values[head] for head in sorted(values, key=str)], np.float32)


def summary(values: Any, size: int = 512) -> np.ndarray:
    """At most so many values of an array, evenly spread over it."""
    flat = np.asarray(values, np.float32).ravel()
    return flat[:: max(1, flat.size // size)]


def compare(
    file: str, name: str, results: Mapping[str, Any], bound: Callable[[str], float] = lambda key: CLOSE
) -> None:
    """Assert that a model's results are the golden ones of a file; `HEADJAX_UPDATE_LISTINGS` writes them anew.

    One process writes a file: pytest then runs with `-n 0`.
    """
    path = FOLDER / file
    found = {f"{name}/{key}": np.asarray(value) for key, value in results.items()}
    kept = dict(np.load(path)) if path.exists() else {}
    if os.environ.get("HEADJAX_UPDATE_LISTINGS"):
        others = {key: value for key, value in kept.items() if not key.startswith(f"{name}/")}
        np.savez_compressed(path, **others, **found)
        return
    golden = {key: value for key, value in kept.items() if key.startswith(f"{name}/")}
    assert sorted(found) == sorted(golden)
    far = {}
    for key, value in golden.items():
        assert found[key].shape == value.shape, key
        difference = float(np.abs(found[key] - value).max() / (np.abs(value).max() or 1.0))
        if not difference <= bound(key):
            far[key] = difference
    assert not far, f"{far}; if that is meant, run this file with HEADJAX_UPDATE_LISTINGS=1"
