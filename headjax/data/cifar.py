"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) as their authors distribute them: the binary and the Python version."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headjax.core.errors import DataError
from headjax.core.files import read_bytes
from headjax.data.prepared.form import Split
from headjax.data.prepared.rows import TaskRow

SHAPE = (3, 32, 32)
"""Of an image in the files: planes of red, green and blue, row by row."""


class Arrays(NamedTuple):
    """Images and their labels.

    Attributes:
        pixels: uint8 `[images, 32, 32, 3]`.
        labels: int32 `[images]`.
    """

    pixels: np.ndarray
    labels: np.ndarray

    def row(self, index: int) -> TaskRow:
        """An image with its label."""
        return TaskRow(f"image {index}", {"image": self.pixels[index], "label": int(self.labels[index])})


class Layout(NamedTuple):
    """A data set's files.

    Attributes:
        train, test: names, with `.bin` in the binary version and without in the Python one.
        label_bytes: before each image in the binary version; the last of them is the label.
        label_key: of the labels in the Python version.
        classes: number of classes.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    label_bytes: int
    label_key: bytes
    classes: int


LAYOUTS: Mapping[str, Layout] = {
    "cifar10": Layout(tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",), 1, b"labels", 10),
    "cifar100": Layout(("train",), ("test",), 2, b"fine_labels", 100),
}
"""CIFAR-100's labels are the 100 fine ones."""


def find_cifar(folder: Path) -> str | None:
    """The name in `LAYOUTS` whose files are in a folder."""
    for name, layout in LAYOUTS.items():
        files = (*layout.train, *layout.test)
        if any(all((folder / f"{file}{suffix}").is_file() for file in files) for suffix in (".bin", "")):
            return name
    return None


def read_cifar(folder: str | Path, name: str) -> dict[Split, Arrays]:
    """The images of both splits.

    Args:
        folder: where the unpacked files are.
        name: a name of `LAYOUTS`.

    Returns:
        `train` and `validation` (the test images).

    Raises:
        DataError: a file that is missing, cut off or none of CIFAR's; the message starts with it.
    """
    layout = LAYOUTS[name]
    files: dict[Split, tuple[str, ...]] = {"train": layout.train, "validation": layout.test}
    return {split: _joined([_read(Path(folder), file, layout) for file in names]) for split, names in files.items()}


def _joined(parts: list[Arrays]) -> Arrays:
    return Arrays(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _read(folder: Path, name: str, layout: Layout) -> Arrays:
    binary = folder / f"{name}.bin"
    file = binary if binary.is_file() else folder / name
    pixels, labels = (_binary if binary.is_file() else _python)(file, layout)
    if not len(labels) or len(labels) != len(pixels):
        raise DataError(f"{file}: {len(pixels)} images and {len(labels)} labels")
    if labels.max() >= layout.classes or labels.min() < 0:
        raise DataError(f"{file}: label {labels.max()}, but there are {layout.classes} classes")
    return Arrays(pixels.reshape(-1, *SHAPE).transpose(0, 2, 3, 1), labels.astype(np.int32))


def _binary(file: Path, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    data = np.frombuffer(read_bytes(file), np.uint8)
    size = layout.label_bytes + math.prod(SHAPE)
    if len(data) % size:
        raise DataError(f"{file}: {len(data):,} bytes are no whole number of images of {size:,}")
    rows = data.reshape(-1, size)
    return rows[:, layout.label_bytes :], rows[:, layout.label_bytes - 1]


def _python(file: Path, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    packed = io.BytesIO(read_bytes(file))
    try:
        data = _ArraysOnly(packed, encoding="bytes").load()
        pixels, labels = np.asarray(data[b"data"], np.uint8), np.asarray(data[layout.label_key], np.int64)
        return pixels.reshape(-1, math.prod(SHAPE)), labels
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DataError(f"{file}: not a file of CIFAR's Python version ({type(error).__name__}: {error})") from None


class _ArraysOnly(pickle.Unpickler):
    """Builds NumPy arrays and plain data, and runs nothing else that a pickle may ask for."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return lambda code, *flags: np.dtype(code)  # flags of NumPy 1, which NumPy 2 warns of
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np._core.multiarray._reconstruct  # type: ignore[attr-defined]
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _latin1(text: str, encoding: str) -> bytes:
    """Bytes as Python 3 pickles them for Python 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for text in {encoding}")
    return text.encode("latin1")
