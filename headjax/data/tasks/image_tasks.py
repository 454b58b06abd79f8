"""Images: MNIST, CIFAR, ImageNet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headjax.core.class_names import class_numbers
from headjax.core.errors import DataError
from headjax.data.forms import ImageForm
from headjax.data.image_rows import cifar_rows, find_cifar, folder_rows, is_mnist, mnist_rows
from headjax.data.rows import Rows
from headjax.data.tasks.local import TFRECORD, has_suffix, local_rows
from headjax.data.tasks.spec import TaskSpec, TfdsSource

MNIST_MEAN, MNIST_DEVIATION = 0.1307, 0.3081
"""Of the pixels of MNIST's training images, between 0 and 1."""

Reader = Callable[[TaskSpec, Sequence[Path]], Rows]

BY_CLASS = "folders of images by class"
FIELDS = {"image": "image", "label": "label"}


def local_images(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Folders of images by class (`folder_rows`), or TFRecords of encoded images.

    Raises:
        DataError: no images, or another number of classes than the task has.
    """
    root = paths[0]
    if any(has_suffix(path, (TFRECORD,)) for path in (root.rglob("*") if root.is_dir() else [root])):
        return local_rows(spec, paths)
    found = folder_rows(root)
    wanted = len(spec.form.label_names)
    if len(found.classes) != wanted:
        raise DataError(f"{root}: {len(found.classes)} folders of images, but {spec.name} has {wanted} classes")
    return found.rows


def local_cifar(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """CIFAR's own files, binary or of the Python version, or what `local_images` reads."""
    if not (paths[0].is_dir() and find_cifar(paths[0]) == spec.name):
        return local_images(spec, paths)
    return cifar_rows(paths[0], spec.name).rows


def local_mnist(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """MNIST's own files, or what `local_images` reads."""
    root = paths[0]
    return mnist_rows(root).rows if root.is_dir() and is_mnist(root) else local_images(spec, paths)


CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _spec(name: str, tfds: str, form: ImageForm, local: Reader, files: str, held: str = "test") -> TaskSpec:
    source = TfdsSource(tfds, {"train": "train", "validation": held}, FIELDS)
    return TaskSpec(name=name, form=form, local=local, sources=(source,), vocabulary="none", files=files)


def _cifar(
    name: str, tfds: str, mean: tuple[float, ...], deviation: tuple[float, ...], classes: tuple[str, ...]
) -> TaskSpec:
    form = ImageForm(size=32, stored=32, margin=4, flip=True, mean=mean, deviation=deviation, classes=classes)
    return _spec(name, tfds, form, local_cifar, f"CIFAR's own files, {BY_CLASS}")


TASKS = (
    _spec(
        "mnist",
        "mnist:3.0.1",
        ImageForm(size=28, stored=28, mean=(MNIST_MEAN,), deviation=(MNIST_DEVIATION,), classes=class_numbers(10)),
        local_mnist,
        f"MNIST's own files, {BY_CLASS}",
    ),
    _cifar("cifar10", "cifar10:3.0.2", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), CIFAR10),
    _cifar("cifar100", "cifar100:3.0.2", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), class_numbers(100)),
    _spec(
        "imagenet",
        "imagenet2012:5.1.0",
        ImageForm(
            size=224,
            stored=256,
            flip=True,
            mean=(0.485, 0.456, 0.406),
            deviation=(0.229, 0.224, 0.225),
            classes=class_numbers(1000),
        ),
        local_images,
        BY_CLASS,
        held="validation",
    ),
)
