"""Folders of images by class, as ImageNet is unpacked."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headjax.core.errors import DataError
from headjax.core.files import read_bytes
from headjax.data.prepared.form import Split
from headjax.data.prepared.rows import TaskRow

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")

FOLDERS: Mapping[Split, tuple[str, ...]] = {"train": ("train",), "validation": ("validation", "val", "test")}
"""Names that the folder of a split may have."""


class ClassFolders(NamedTuple):
    """The images of both splits.

    Attributes:
        classes: the folders' names, sorted: class numbers are places in it.
        files: by split, files and their class numbers.
    """

    classes: tuple[str, ...]
    files: Mapping[Split, list[tuple[Path, int]]]

    def reader(self, split: Split) -> Callable[[int], TaskRow]:
        """Decodes a split's images by their places in `files`."""

        def read(index: int) -> TaskRow:
            file, number = self.files[split][index]
            return TaskRow(str(file), {"image": pixels(read_bytes(file), str(file)), "label": number})

        return read


def class_folders(root: Path) -> ClassFolders:
    """Finds `train/CLASS/*.png` and `validation/CLASS/*.png` (or JPEG, or BMP); no image is read.

    Raises:
        DataError: a folder that is not there, has no images, or other classes than the training one.
    """
    classes: tuple[str, ...] = ()
    files: dict[Split, list[tuple[Path, int]]] = {}
    for split, names in FOLDERS.items():
        folder = next((root / name for name in names if (root / name).is_dir()), None)
        if folder is None:
            raise DataError(f"{root}: no folder {' or '.join(names)} in it")
        found = tuple(sorted(child.name for child in folder.iterdir() if child.is_dir()))
        if classes and found != classes:
            raise DataError(f"{folder}: its {len(found)} folders are not named like the {len(classes)} to train on")
        classes = found
        files[split] = [(file, number) for number, name in enumerate(classes) for file in _images(folder / name)]
        if not files[split]:
            raise DataError(f"{folder}: no images in its folders")
    return ClassFolders(classes, files)


def _images(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)


def pixels(data: bytes, place: str) -> np.ndarray:
    """An encoded image (PNG, JPEG, ...) as uint8 `[height, width, channels]`.

    Raises:
        DataError: it is none.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("L" if image.mode in ("1", "L", "I;16") else "RGB"))
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise DataError(f"{place}: not an image ({' '.join(str(error).split())})") from None
