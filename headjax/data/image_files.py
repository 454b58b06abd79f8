"""The user's own images, read from their files while training."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from headjax.core.errors import DataError, require
from headjax.core.serialize import kind
from headjax.data.augmentation import Augmentation
from headjax.data.cifar import find_cifar, read_cifar
from headjax.data.image_folders import class_folders
from headjax.data.prepared.form import Record, Split
from headjax.data.prepared.images import AugmentedImages, ImageForm, PlainImages
from headjax.data.prepared.rows import TaskRow
from headjax.data.task import DataConfig, TaskData
from headjax.tokenizers.tokenizer import Tokenizer


class Found(NamedTuple):
    """What a folder holds.

    Attributes:
        task: the task of `headjax.data.tasks` whose sizes and colours are usual for such images.
        classes: their names; empty where they are those of the task.
        rows: by split, how to read an image.
        counts: by split, how many there are.
        fingerprint: hash of what is trained on.
    """

    task: str
    classes: tuple[str, ...]
    rows: Mapping[Split, Callable[[int], TaskRow]]
    counts: Mapping[Split, int]
    fingerprint: str


@kind("image_files")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageFiles(DataConfig):
    """CIFAR-10 or CIFAR-100 in their own files, or folders `train/CLASS/*.jpg` and `validation/CLASS/*.jpg`.

    Images of folders are decoded every time they are read; `headjax prepare imagenet` decodes them once. Training cuts
    random squares and mirrors half of them, see `headjax.data.prepared.ImageForm`.

    Attributes:
        path: the folder.
        size: pixels of a side as the model reads them; 0 is 32 for CIFAR and 224 for others.
        flip: whether training mirrors images.
        mean, deviation: of each channel, of pixels between 0 and 1; empty takes CIFAR's or ImageNet's.
        augmentation: what training does to images in place of the squares and mirroring.
    """

    path: str
    size: int = 0
    flip: bool = True
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    augmentation: Augmentation | None = None

    def __post_init__(self) -> None:
        require(self.size >= 0, "size", f"must not be negative, got {self.size}")

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        found = _find(Path(self.path).expanduser())
        form = self.form(found)
        train, validation = (FileImages(form, found.rows[split], found.counts[split]) for split in found.counts)
        info = {
            "images": self.path,
            "data": found.fingerprint,
            "train": {"examples": len(train)},
            "validation": {"examples": len(validation)},
            "labels": list(form.classes),
        }
        augmented = AugmentedImages(train, form, self.augmentation or form.usual)
        return TaskData(None, augmented, PlainImages(validation, form), info)

    def form(self, found: Found) -> ImageForm:
        """How images become examples."""
        from headjax.data.tasks import find_task

        usual = cast(ImageForm, find_task(found.task).form)
        size = self.size or usual.size
        return dataclasses.replace(
            usual,
            size=size,
            stored=round(usual.stored * size / usual.size),
            flip=self.flip,
            mean=self.mean or usual.mean,
            deviation=self.deviation or usual.deviation,
            classes=found.classes or usual.classes,
        )


@dataclasses.dataclass(frozen=True)
class FileImages:
    """Images as records, each read when it is asked for.

    Attributes:
        form: their size on their way into examples.
        row: reads one.
        count: how many there are.
    """

    form: ImageForm
    row: Callable[[int], TaskRow]
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Record:
        return self.form.encode(None, [self.row(index)], "train", ()).records[0]


def _find(folder: Path) -> Found:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    name = find_cifar(folder)
    if name is None:
        images = class_folders(folder)
        listed = [
            (str(file.relative_to(folder)), file.stat().st_size, number) for file, number in images.files["train"]
        ]
        return Found(
            "imagenet",
            images.classes,
            {split: images.reader(split) for split in images.files},
            {split: len(files) for split, files in images.files.items()},
            hashlib.sha256(repr(listed).encode()).hexdigest()[:16],
        )
    arrays = read_cifar(folder, name)
    return Found(
        name,
        (),
        {split: part.row for split, part in arrays.items()},
        {split: len(part.labels) for split, part in arrays.items()},
        hashlib.sha256(np.concatenate([part.ravel() for part in arrays["train"]]).tobytes()).hexdigest()[:16],
    )
