"""Images: MNIST, CIFAR, ImageNet."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headjax.data.images import MNIST_DEVIATION, MNIST_MEAN, Mnist
from headjax.data.prepared.form import Split
from headjax.data.prepared.images import ImageForm
from headjax.data.prepared.rows import RowSource, TaskRow
from headjax.data.tasks.local import TFRECORD, has_suffix, local_rows, pixels
from headjax.data.tasks.spec import Rows, TaskSpec, TfdsSource
from headjax.data.text_files import read_bytes
from headjax.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".JPEG", ".bmp")
BY_CLASS = "folders of images by class"
FIELDS = {"image": "image", "label": "label"}


FOLDERS: Mapping[Split, tuple[str, ...]] = {"train": ("train",), "validation": ("validation", "val", "test")}
"""Names that the folder of a split may have."""


def local_images(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Folders `train/CLASS/*.png` and `validation/CLASS/*.png` (or JPEG), or TFRecords of encoded images.

    Class numbers go by the sorted names of the folders.

    Raises:
        DataError: no images, or another number of classes than the task has.
    """
    root = paths[0]
    if any(has_suffix(path, (TFRECORD,)) for path in (root.rglob("*") if root.is_dir() else [root])):
        return local_rows(spec, paths)
    found: dict[Split, RowSource] = {}
    for split, names in FOLDERS.items():
        folder = next((root / name for name in names if (root / name).is_dir()), None)
        if folder is None:
            raise DataError(f"{root}: no folder {' or '.join(names)} in it")
        classes = sorted(child for child in folder.iterdir() if child.is_dir())
        if len(classes) != len(spec.form.label_names):
            raise DataError(
                f"{folder}: {len(classes)} folders, but {spec.name} has {len(spec.form.label_names)} classes"
            )
        files = [(file, number) for number, child in enumerate(classes) for file in _images(child)]
        if not files:
            raise DataError(f"{folder}: no images in its folders")
        found[split] = RowSource(functools.partial(_read, files), len(files))
    return found


def _images(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.name.endswith(SUFFIXES))


def _read(files: Sequence[tuple[Path, int]]) -> Iterator[TaskRow]:
    for file, number in files:
        yield TaskRow(str(file), {"image": pixels(read_bytes(file), str(file)), "label": number})


def local_mnist(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """MNIST's own files, or what `local_images` reads."""
    root = paths[0]
    if not (root.is_dir() and any(root.glob("*-idx3-ubyte*"))):
        return local_images(spec, paths)
    data = Mnist(path=str(root)).load()
    return {
        "train": RowSource(functools.partial(_arrays, root, data.train), len(data.train)),
        "validation": RowSource(functools.partial(_arrays, root, data.validation), len(data.validation)),
    }


def _arrays(root: Path, images: Any) -> Iterator[TaskRow]:
    for number, (image, label) in enumerate(zip(images.pixels, images.labels, strict=True)):
        yield TaskRow(f"{root}: image {number}", {"image": image, "label": int(label)})


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(count))


CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

TASKS = (
    TaskSpec(
        name="mnist",
        form=ImageForm(size=28, stored=28, mean=(MNIST_MEAN,), deviation=(MNIST_DEVIATION,), classes=_numbered(10)),
        local=local_mnist,
        sources=(TfdsSource("mnist:3.0.1", {"train": "train", "validation": "test"}, FIELDS),),
        vocabulary="none",
        files="MNIST's own files, folders of images by class",
    ),
    TaskSpec(
        name="cifar10",
        form=ImageForm(
            size=32,
            stored=32,
            margin=4,
            flip=True,
            mean=(0.4914, 0.4822, 0.4465),
            deviation=(0.2470, 0.2435, 0.2616),
            classes=CIFAR10,
        ),
        local=local_images,
        sources=(TfdsSource("cifar10:3.0.2", {"train": "train", "validation": "test"}, FIELDS),),
        vocabulary="none",
        files=BY_CLASS,
    ),
    TaskSpec(
        name="cifar100",
        form=ImageForm(
            size=32,
            stored=32,
            margin=4,
            flip=True,
            mean=(0.5071, 0.4865, 0.4409),
            deviation=(0.2673, 0.2564, 0.2762),
            classes=_numbered(100),
        ),
        local=local_images,
        sources=(TfdsSource("cifar100:3.0.2", {"train": "train", "validation": "test"}, FIELDS),),
        vocabulary="none",
        files=BY_CLASS,
    ),
    TaskSpec(
        name="imagenet",
        form=ImageForm(
            size=224,
            stored=256,
            flip=True,
            mean=(0.485, 0.456, 0.406),
            deviation=(0.229, 0.224, 0.225),
            classes=_numbered(1000),
        ),
        local=local_images,
        sources=(TfdsSource("imagenet2012:5.1.0", {"train": "train", "validation": "validation"}, FIELDS),),
        vocabulary="none",
        files=BY_CLASS,
    ),
)
