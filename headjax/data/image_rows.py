"""Images with labels as rows: MNIST's and CIFAR's binary files, and folders of images by class."""

from __future__ import annotations

import functools
import hashlib
import io
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headjax.core.class_names import class_numbers, sorted_names
from headjax.core.errors import DataError
from headjax.data.files import packed_or_plain, source_of
from headjax.data.rows import SPLITS, Row, Rows, RowSource, Split
from headjax.storage.files import first_line, read_bytes
from headjax.storage.paths import size_of

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")

FOLDERS: Mapping[Split, tuple[str, ...]] = {"train": ("train",), "validation": ("validation", "val", "test")}
"""Names that the folder of a split may have."""

MNIST_FILES: Mapping[Split, str] = {"train": "train", "validation": "t10k"}
"""First parts of the names of MNIST's files."""

CIFAR_SHAPE = (3, 32, 32)
"""Shape of an image in CIFAR's files: planes of red, green and blue, row by row."""


class ImageRows(NamedTuple):
    """Images with labels, each read by its number; `name` is the data set's, empty for folders by class."""

    rows: Rows
    classes: tuple[str, ...]
    fingerprint: str
    name: str = ""


def is_image_folder(folder: Path) -> bool:
    """Return whether a folder holds files of MNIST's or CIFAR's format, or images in folders by split and class."""
    if is_mnist(folder) or find_cifar(folder) is not None:
        return True
    splits = (folder / name for names in FOLDERS.values() for name in names)
    return any(_images(child) for split in splits if split.is_dir() for child in _shown(split) if child.is_dir())


def image_rows(folder: Path) -> ImageRows:
    """Return the images of a folder, in whatever format."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    if is_mnist(folder):
        return mnist_rows(folder)
    name = find_cifar(folder)
    return folder_rows(folder) if name is None else cifar_rows(folder, name)


def _array_rows(folder: Path, found: Mapping[Split, tuple[np.ndarray, np.ndarray]]) -> Rows:
    """Return arrays of images and of labels as rows."""
    return {
        split: RowSource.by_number(functools.partial(_array_row, folder, pixels, labels), len(labels))
        for split, (pixels, labels) in found.items()
    }


def _array_row(folder: Path, pixels: np.ndarray, labels: np.ndarray, index: int) -> Row:
    return Row(f"{folder}: image {index}", {"image": pixels[index], "label": int(labels[index])})


def _hash(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


def is_mnist(folder: Path) -> bool:
    """Return whether a folder holds files in MNIST's format."""
    return packed_or_plain(folder / "train-images-idx3-ubyte") is not None


def mnist_rows(folder: Path) -> ImageRows:
    """Return the images of both splits from files in MNIST's format (MNIST, Fashion-MNIST, KMNIST)."""
    found = {split: _mnist(folder, name) for split, name in MNIST_FILES.items()}
    (pixels, labels), (_, held) = found["train"], found["validation"]
    classes = int(labels.max()) + 1
    if int(held.max()) >= classes:
        place = f"{MNIST_FILES['validation']}-labels-idx1-ubyte"
        raise DataError(f"{folder / place}: label {held.max()}, but training has the {classes} classes from 0")
    return ImageRows(
        _array_rows(folder, found), class_numbers(classes), _hash(pixels, labels.astype(np.int32)), "mnist"
    )


def _mnist(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    files = [folder / f"{name}-{what}" for what in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    pixels, labels = (read_idx(packed_or_plain(file) or file) for file in files)
    if pixels.ndim != 3 or labels.ndim != 1 or len(pixels) != len(labels):
        shapes = f"{list(pixels.shape)} and {list(labels.shape)}"
        raise DataError(f"{files[0]}: images and labels do not belong together, they are {shapes}")
    return pixels, labels


def read_idx(path: str | Path) -> np.ndarray:
    """Return an array of bytes from an IDX file, which may be packed with gzip.

    The format is two zero bytes, type 8, the number of axes, their sizes, the values.
    """
    file = source_of(path)
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


def folder_rows(root: Path) -> ImageRows:
    """Return the images of `train/CLASS/*.png` and `validation/CLASS/*.png` (or JPEG, or BMP), as ImageNet is unpacked.

    A folder with `validation` alone is one to judge on. Classes are numbered in the order of their names: as numbers if
    they all are, else as text. An image is read with its row.
    """
    classes: tuple[str, ...] = ()
    files: dict[Split, list[tuple[Path, int]]] = {}
    for split, names in FOLDERS.items():
        folder = next((root / name for name in names if (root / name).is_dir()), None)
        if folder is None and split == "train" and any((root / name).is_dir() for name in FOLDERS["validation"]):
            continue
        if folder is None:
            raise DataError(f"{root}: no folder {' or '.join(names)} in it")
        found = sorted_names([child.name for child in _shown(folder) if child.is_dir()])
        if classes and found != classes:
            raise DataError(f"{folder}: its {len(found)} folders are not named like the {len(classes)} to train on")
        classes = found
        files[split] = [(file, number) for number, name in enumerate(classes) for file in _images(folder / name)]
        if not files[split]:
            raise DataError(f"{folder}: no images in its folders")
    listed = [(str(file.relative_to(root)), size_of(file), number) for file, number in files.get("train", ())]
    return ImageRows(
        {split: RowSource.by_number(functools.partial(_file_row, found), len(found)) for split, found in files.items()},
        classes,
        hashlib.sha256(repr(listed).encode()).hexdigest()[:16],
    )


def _shown(folder: Path) -> Iterator[Path]:
    return (child for child in folder.iterdir() if not child.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    return sorted(file for file in _shown(folder) if file.suffix.lower() in IMAGE_SUFFIXES)


def _file_row(files: Sequence[tuple[Path, int]], index: int) -> Row:
    file, number = files[index]
    return Row(str(file), {"image": pixels(read_bytes(file), str(file)), "label": number})


def pixels(data: bytes, place: str) -> np.ndarray:
    """Return an encoded image (PNG, JPEG, ...) as uint8 `[height, width]` or `[height, width, 3]`."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode.startswith("I;16"):  # which the library would clip at 255
                return (np.asarray(image) >> 8).astype(np.uint8)
            return np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))
    except Image.DecompressionBombError as error:  # its size alone has been read
        raise DataError(f"{place}: too large for an image ({first_line(error).split(',')[0]})") from None
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{place}: not an image ({' '.join(str(error).split())})") from None


class CifarLayout(NamedTuple):
    """The files of CIFAR-10's or CIFAR-100's binary version (Krizhevsky 2009)."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    label_bytes: int
    classes: int


CIFAR: Mapping[str, CifarLayout] = {
    "cifar10": CifarLayout(tuple(f"data_batch_{i}.bin" for i in range(1, 6)), ("test_batch.bin",), 1, 10),
    "cifar100": CifarLayout(("train.bin",), ("test.bin",), 2, 100),
}
"""Layouts by name; CIFAR-100's labels are the 100 fine ones."""


def find_cifar(folder: Path) -> str | None:
    """Return the name in `CIFAR` whose files a folder holds; None if it holds neither's."""
    for name, layout in CIFAR.items():
        if all((folder / file).is_file() for file in (*layout.train, *layout.test)):
            return name
    return None


def cifar_rows(folder: Path, name: str) -> ImageRows:
    """Return the images of CIFAR's binary files; the test images are evaluated on."""
    layout = CIFAR[name]
    found = {
        split: _joined([_cifar(folder / file, layout) for file in files])
        for split, files in zip(SPLITS, (layout.train, layout.test), strict=True)
    }
    # The arrays are joined as integers of 32 bits: checkpoints hold this hash.
    data = np.concatenate([part.ravel() for part in found["train"]])
    return ImageRows(_array_rows(folder, found), class_numbers(layout.classes), _hash(data), name)


def _joined(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    pixels, labels = zip(*parts, strict=True)
    return np.concatenate(pixels), np.concatenate(labels)


def _cifar(file: Path, layout: CifarLayout) -> tuple[np.ndarray, np.ndarray]:
    """Return images uint8 `[images, 32, 32, 3]` and labels int32 `[images]` of one file."""
    data = np.frombuffer(read_bytes(file), np.uint8)
    size = layout.label_bytes + math.prod(CIFAR_SHAPE)
    if not len(data) or len(data) % size:
        raise DataError(f"{file}: {len(data):,} bytes are not a whole number of images of {size:,}")
    rows = data.reshape(-1, size)
    labels = rows[:, layout.label_bytes - 1].astype(np.int32)
    if labels.max() >= layout.classes:
        raise DataError(f"{file}: label {labels.max()}, but there are {layout.classes} classes")
    return rows[:, layout.label_bytes :].reshape(-1, *CIFAR_SHAPE).transpose(0, 2, 3, 1), labels
