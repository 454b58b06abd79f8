"""Images with labels as rows: MNIST's and CIFAR's binary files, and folders of images by class."""

from __future__ import annotations

import functools
import hashlib
import io
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headjax.core.class_names import class_numbers, sorted_names
from headjax.core.errors import DataError
from headjax.data.files import packed_or_plain
from headjax.data.rows import SPLITS, Row, Rows, RowSource, Split
from headjax.storage.files import first_line, read_bytes
from headjax.storage.paths import size_of

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")

FOLDERS: Mapping[Split, tuple[str, ...]] = {"train": ("train",), "validation": ("validation", "val", "test")}
"""Names that the folder of a split may have."""

MNIST = ("train", "t10k")
"""First parts of the names of MNIST's files, by split."""


class CifarLayout(NamedTuple):
    """The files of CIFAR-10's or CIFAR-100's binary version (Krizhevsky 2009) by split; the last label byte counts."""

    files: tuple[tuple[str, ...], tuple[str, ...]]
    label_bytes: int
    classes: int


CIFAR: Mapping[str, CifarLayout] = {
    "cifar10": CifarLayout((tuple(f"data_batch_{i}.bin" for i in range(1, 6)), ("test_batch.bin",)), 1, 10),
    "cifar100": CifarLayout((("train.bin",), ("test.bin",)), 2, 100),
}

Images = tuple[np.ndarray, np.ndarray]
"""Pixels uint8 `[images, height, width(, channels)]` and labels `[images]`."""


class ImageRows(NamedTuple):
    """Images with labels, each read by its number; `name` is the data set's, empty for folders by class."""

    rows: Rows
    classes: tuple[str, ...]
    fingerprint: str
    name: str = ""


def data_set(folder: Path) -> str:
    """Return the name of the data set whose binary files a folder holds: `mnist`, one of `CIFAR`, or empty."""
    if packed_or_plain(folder / f"{MNIST[0]}-images-idx3-ubyte") is not None:
        return "mnist"
    parts = ((name, file) for name, layout in CIFAR.items() for files in layout.files for file in files)
    return next((name for name, file in parts if (folder / file).is_file()), "")


def is_image_folder(folder: Path) -> bool:
    """Return whether a folder holds files of MNIST's or CIFAR's format, or images in folders by split and class."""
    splits = (folder / name for names in FOLDERS.values() for name in names)
    classes = (child for split in splits if split.is_dir() for child in _shown(split) if child.is_dir())
    return bool(data_set(folder)) or any(map(_images, classes))


def image_rows(folder: Path) -> ImageRows:
    """Return the images of a folder, in whatever format; the test images of a data set are evaluated on."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    name = data_set(folder)
    if not name:
        return _folder_rows(folder)
    if name == "mnist":
        found = [_mnist(folder, split) for split in MNIST]
        classes = int(found[0][1].max()) + 1
        if int(found[1][1].max()) >= classes:
            place = folder / f"{MNIST[1]}-labels-idx1-ubyte"
            raise DataError(f"{place}: label {found[1][1].max()}, but training has the {classes} classes from 0")
    else:
        layout = CIFAR[name]
        parts = [[_cifar(folder / file, layout) for file in files] for files in layout.files]
        found = [(np.concatenate([one[0] for one in part]), np.concatenate([one[1] for one in part])) for part in parts]
        classes = layout.classes
    data = hashlib.sha256(b"".join(array.tobytes() for array in found[0])).hexdigest()[:16]
    rows: dict[Split, RowSource] = {
        split: RowSource.by_number(functools.partial(_array_row, folder, images), len(images[1]))
        for split, images in zip(SPLITS, found, strict=True)
    }
    return ImageRows(rows, class_numbers(classes), data, name)


def _array_row(folder: Path, images: Images, index: int) -> Row:
    return Row(f"{folder}: image {index}", {"image": images[0][index], "label": int(images[1][index])})


def _mnist(folder: Path, split: str) -> Images:
    """Return the images of a split in MNIST's format (MNIST, Fashion-MNIST, KMNIST)."""
    files = [folder / f"{split}-{what}" for what in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    pixels, labels = (read_idx(packed_or_plain(file) or file) for file in files)
    if pixels.ndim != 3 or labels.ndim != 1 or len(pixels) != len(labels):
        shapes = f"{list(pixels.shape)} and {list(labels.shape)}"
        raise DataError(f"{files[0]}: images and labels do not belong together, they are {shapes}")
    return pixels, labels


def read_idx(file: Path) -> np.ndarray:
    """Return an array of bytes from an IDX file: two zero bytes, type 8, the number of axes, their sizes, values."""
    data = read_bytes(file)
    start = 4 + 4 * data[3] if len(data) > 3 else 4
    if data[:3] != b"\0\0\x08" or len(data) < start:
        raise DataError(f"{file}: not an IDX file of bytes")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    if len(data) != start + math.prod(shape) or len(data) == start:
        raise DataError(f"{file}: {len(data) - start:,} values, where an array {list(shape)} is expected")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _cifar(file: Path, layout: CifarLayout) -> Images:
    data = np.frombuffer(read_bytes(file), np.uint8)
    size = layout.label_bytes + 3 * 32 * 32
    if not len(data) or len(data) % size:
        raise DataError(f"{file}: {len(data):,} bytes are not a whole number of images of {size:,}")
    rows = data.reshape(-1, size)
    labels = rows[:, layout.label_bytes - 1]
    if labels.max() >= layout.classes:
        raise DataError(f"{file}: label {labels.max()}, but there are {layout.classes} classes")
    return rows[:, layout.label_bytes :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


def _folder_rows(root: Path) -> ImageRows:
    """Return the images of `train/CLASS/*.png` and `validation/CLASS/*.png` (or JPEG, or BMP), as ImageNet is unpacked.

    A folder with `validation` alone is one to judge on. Classes are numbered in the order of their names: as numbers if
    they all are, else as text. An image is read with its row.
    """
    folders = {
        split: next((root / name for name in names if (root / name).is_dir()), None) for split, names in FOLDERS.items()
    }
    if folders["validation"] is None:
        missing = [split for split, folder in folders.items() if folder is None]
        raise DataError(f"{root}: no folder {' or '.join(FOLDERS[missing[0]])} in it")
    classes: tuple[str, ...] = ()
    files: dict[Split, list[tuple[Path, int]]] = {}
    for split, folder in folders.items():
        if folder is None:
            continue
        found = sorted_names([child.name for child in _shown(folder) if child.is_dir()])
        if classes and found != classes:
            raise DataError(f"{folder}: its {len(found)} folders are not named like the {len(classes)} to train on")
        classes = found
        files[split] = [(file, number) for number, name in enumerate(classes) for file in _images(folder / name)]
        if not files[split]:
            raise DataError(f"{folder}: no images in its folders")
    listed = [(str(file.relative_to(root)), size_of(file), number) for file, number in files.get("train", ())]
    rows: dict[Split, RowSource] = {
        split: RowSource.by_number(functools.partial(_file_row, some), len(some)) for split, some in files.items()
    }
    return ImageRows(rows, classes, hashlib.sha256(repr(listed).encode()).hexdigest()[:16])


def _shown(folder: Path) -> Iterator[Path]:
    return (child for child in folder.iterdir() if not child.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    return sorted(file for file in _shown(folder) if file.suffix.lower() in IMAGE_SUFFIXES)


def _file_row(files: list[tuple[Path, int]], index: int) -> Row:
    file, number = files[index]
    return Row(str(file), {"image": pixels(read_bytes(file), str(file)), "label": number})


def pixels(data: bytes, place: str) -> np.ndarray:
    """Return an encoded image (PNG, JPEG, ...) as uint8 `[height, width]` or `[height, width, 3]`."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode.startswith("I;16"):  # which the library would clip at 255
                return (np.asarray(image) >> 8).astype(np.uint8)
            return np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))
    except (Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{place}: not an image ({first_line(error)})") from None
