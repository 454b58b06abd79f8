"""Images with labels as rows: MNIST's files, and folders of images by class."""

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


class ImageRows(NamedTuple):
    """Images with labels, each read by its number; whether they are of MNIST's files."""

    rows: Rows
    classes: tuple[str, ...]
    fingerprint: str
    mnist: bool = False


def _is_mnist(folder: Path) -> bool:
    return packed_or_plain(folder / f"{MNIST[0]}-images-idx3-ubyte") is not None


def is_image_folder(folder: Path) -> bool:
    """Return whether a folder holds files of MNIST's format, or images in folders by split and class."""
    splits = (folder / name for names in FOLDERS.values() for name in names)
    classes = (child for split in splits if split.is_dir() for child in _shown(split) if child.is_dir())
    return _is_mnist(folder) or any(map(_images, classes))


def image_rows(folder: Path) -> ImageRows:
    """Return the images of a folder in one of both formats; MNIST's test images are evaluated on."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    if not _is_mnist(folder):
        return _folder_rows(folder)
    found = [_mnist(folder, split) for split in MNIST]
    classes, largest = (int(labels.max()) for _, labels in found)
    if largest > classes:
        place = folder / f"{MNIST[1]}-labels-idx1-ubyte"
        raise DataError(f"{place}: label {largest}, but training has the {classes + 1} classes from 0")
    data = hashlib.sha256(b"".join(array.tobytes() for array in found[0])).hexdigest()[:16]
    rows: dict[Split, RowSource] = {
        split: RowSource.by_number(functools.partial(_array_row, folder, *images), len(images[1]))
        for split, images in zip(SPLITS, found, strict=True)
    }
    return ImageRows(rows, class_numbers(classes + 1), data, mnist=True)


def _array_row(folder: Path, images: np.ndarray, labels: np.ndarray, index: int) -> Row:
    return Row(f"{folder}: image {index}", {"image": images[index], "label": int(labels[index])})


def _mnist(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels `[images, height, width]` and labels of a split in MNIST's format (Fashion-MNIST, KMNIST)."""
    files = [folder / f"{split}-{what}" for what in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    pixels, labels = (read_idx(packed_or_plain(file) or file) for file in files)
    if pixels.ndim != 3 or labels.ndim != 1 or len(pixels) != len(labels):
        shapes = f"they are {[*pixels.shape]} and {[*labels.shape]}"
        raise DataError(f"{files[0]}: images and labels do not belong together, {shapes}")
    return pixels, labels


def read_idx(file: Path) -> np.ndarray:
    """Return an array of bytes from an IDX file: two zero bytes, type 8, the number of axes, their sizes, values."""
    data = read_bytes(file)
    start = 4 + 4 * data[3] if len(data) > 3 else 4
    shape = struct.unpack(f">{data[3]}I", data[4:start]) if len(data) >= start else (0,)
    if data[:3] != b"\0\0\x08" or len(data) != start + math.prod(shape) or not math.prod(shape):
        raise DataError(f"{file}: not an IDX file of bytes")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _folder_rows(root: Path) -> ImageRows:
    """Return the images of `train/CLASS/*.png` and `validation/CLASS/*.png` (or JPEG, or BMP), as ImageNet is unpacked.

    A folder with `validation` alone is one to judge on. Classes are numbered in the order of their names: as numbers if
    they all are, else as text. An image is read with its row.
    """
    folders = {
        split: next((root / name for name in names if (root / name).is_dir()), None) for split, names in FOLDERS.items()
    }
    if folders["validation"] is None:
        missing = next(split for split, folder in folders.items() if folder is None)
        raise DataError(f"{root}: no folder {' or '.join(FOLDERS[missing])} in it")
    classes: tuple[str, ...] = ()
    files: dict[Split, list[tuple[Path, int]]] = {}
    for split, folder in ((split, folder) for split, folder in folders.items() if folder is not None):
        found = sorted_names([child.name for child in _shown(folder) if child.is_dir()])
        if classes and found != classes:
            raise DataError(f"{folder}: its {len(found)} folders are not named like the {len(classes)} to train on")
        classes = found
        files[split] = [(file, number) for number, name in enumerate(classes) for file in _images(folder / name)]
        if not files[split]:
            raise DataError(f"{folder}: no images in its folders")
    listed = [(str(file.relative_to(root)), size_of(file), number) for file, number in files.get("train", ())]
    rows = {split: RowSource.by_number(functools.partial(_file_row, some), len(some)) for split, some in files.items()}
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
