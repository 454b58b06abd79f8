"""Images with labels in MNIST's file format."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import struct
from pathlib import Path

import numpy as np

from headjax.core.errors import DataError, require
from headjax.core.files import read_bytes
from headjax.core.serialize import kind
from headjax.data.roots import data_folder
from headjax.data.task import DataConfig, TaskData
from headjax.tokenizers.tokenizer import Tokenizer

MNIST_MEAN, MNIST_DEVIATION = 0.1307, 0.3081
"""Of the pixels of MNIST's training images, between 0 and 1."""


@dataclasses.dataclass(frozen=True)
class Images:
    """Images as examples: `pixel_values` float32 `[1, height, width]` and `labels`, an integer.

    Attributes:
        pixels: uint8 `[images, height, width]`.
        labels: `[images]` integers.
        mean, deviation: pixel_values are (pixel / 255 - mean) / deviation.
    """

    pixels: np.ndarray
    labels: np.ndarray
    mean: float
    deviation: float

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        values = (self.pixels[index].astype(np.float32) / 255.0 - self.mean) / self.deviation
        return {"pixel_values": values[None].astype(np.float32), "labels": self.labels[index]}


@kind("mnist")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Mnist(DataConfig):
    """The files of MNIST, or of another data set in its format (Fashion-MNIST, KMNIST).

    Attributes:
        path: the folder of `train-images-idx3-ubyte.gz`, `train-labels-idx1-ubyte.gz` and the same of `t10k`, packed or
            unpacked; empty looks for `images/mnist` or `mnist` under the folder that HEADJAX_DATA names.
        mean, deviation: what pixels between 0 and 1 are shifted and scaled by.
    """

    path: str = ""
    mean: float = MNIST_MEAN
    deviation: float = MNIST_DEVIATION

    def __post_init__(self) -> None:
        require(self.deviation > 0, "deviation", f"must be positive, got {self.deviation}")

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        folder = data_folder("mnist", self.path, ("images/mnist", "mnist"), _is_mnist)
        train, validation = (self._read(folder, split) for split in ("train", "t10k"))
        classes = int(train.labels.max()) + 1
        if int(validation.labels.max()) >= classes:
            place = _find(folder, "t10k-labels-idx1-ubyte")
            raise DataError(f"{place}: label {validation.labels.max()}, but training has the {classes} classes from 0")
        info = {
            "images": str(folder),
            "data": hashlib.sha256(train.pixels.tobytes() + train.labels.tobytes()).hexdigest()[:16],
            "train": {"examples": len(train)},
            "validation": {"examples": len(validation)},
            "labels": [str(label) for label in range(classes)],
        }
        return TaskData(None, train, validation, info)

    def _read(self, folder: Path, split: str) -> Images:
        files = [_find(folder, f"{split}-{name}") for name in ("images-idx3-ubyte", "labels-idx1-ubyte")]
        pixels, labels = (read_idx(file) for file in files)
        if pixels.ndim != 3 or labels.ndim != 1 or len(pixels) != len(labels):
            shapes = f"{list(pixels.shape)} and {list(labels.shape)}"
            raise DataError(f"{files[0]}: images and labels do not belong together, they are {shapes}")
        return Images(pixels, labels.astype(np.int32), self.mean, self.deviation)


def read_idx(path: str | Path) -> np.ndarray:
    """An array of bytes from an IDX file (two zero bytes, type 8, the number of axes, sizes, values), packed or not.

    Raises:
        DataError: a file that is no such array, or not a whole one; the message starts with it.
    """
    file = Path(path)
    data = read_bytes(file)
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise DataError(f"{file}: not an IDX file of bytes")
    axes = data[3]
    start = 4 + 4 * axes
    if len(data) < start:
        raise DataError(f"{file}: cut off after {len(data)} bytes")
    shape = struct.unpack(f">{axes}I", data[4:start])
    wanted = start + math.prod(shape)
    if len(data) != wanted:
        raise DataError(f"{file}: {len(data):,} bytes where an array {list(shape)} has {wanted:,}")
    if math.prod(shape) == 0:
        raise DataError(f"{file}: empty, an array {list(shape)}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _find(folder: Path, name: str) -> Path:
    packed = folder / f"{name}.gz"
    return packed if packed.is_file() else folder / name


def _is_mnist(folder: Path) -> bool:
    return _find(folder, "train-images-idx3-ubyte").is_file()
