"""Data of images: MNIST, CIFAR, ImageNet, and the user's own folders of images by class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headjax.core.class_names import class_numbers
from headjax.core.errors import DataError
from headjax.core.fields import Count, Positive
from headjax.core.serialize import kind
from headjax.data.augmentation import Augmentation
from headjax.data.files import data_folder, source_of
from headjax.data.forms import ImageForm
from headjax.data.image_rows import ImageRows, cifar_rows, find_cifar, folder_rows, is_mnist, mnist_rows
from headjax.data.loading import Reading, read_when_asked, task_data
from headjax.data.rows import Rows
from headjax.data.task import DataConfig, TaskData
from headjax.data.task_spec import TFRECORD, TaskSpec, TfdsSource, has_suffix, local_rows
from headjax.tokenizers.tokenizer import Tokenizer

MNIST_MEAN, MNIST_DEVIATION = 0.1307, 0.3081
"""Mean and standard deviation of the pixels of MNIST's training images, scaled to [0, 1]."""

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _cifar(mean: tuple[float, ...], deviation: tuple[float, ...], classes: tuple[str, ...]) -> ImageForm:
    return ImageForm(size=32, stored=32, margin=4, flip=True, mean=mean, deviation=deviation, classes=classes)


FORMS: Mapping[str, ImageForm] = {
    "mnist": ImageForm(size=28, stored=28, mean=(MNIST_MEAN,), deviation=(MNIST_DEVIATION,), classes=class_numbers(10)),
    "cifar10": _cifar((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), CIFAR10),
    "cifar100": _cifar((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), class_numbers(100)),
    "imagenet": ImageForm(
        size=224,
        stored=256,
        flip=True,
        mean=(0.485, 0.456, 0.406),
        deviation=(0.229, 0.224, 0.225),
        classes=class_numbers(1000),
    ),
}
"""The forms of the tasks by name."""


@kind("mnist")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Mnist(DataConfig):
    """The files of MNIST, or of another data set in its format (Fashion-MNIST, KMNIST): see `ImageForm`.

    Attributes:
        path: the folder of `train-images-idx3-ubyte.gz`, `train-labels-idx1-ubyte.gz` and the same of `t10k`, packed or
            unpacked; empty looks for `images/mnist` or `mnist` under the folder that HEADJAX_DATA names.
        mean, deviation: subtracted from pixels scaled to [0, 1], and their divisor.
    """

    path: str = ""
    mean: float = MNIST_MEAN
    deviation: Positive = MNIST_DEVIATION

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        folder = data_folder("mnist", self.path, ("images/mnist", "mnist"), is_mnist)
        found = mnist_rows(folder)
        side = min(found.rows["train"].at(0).values["image"].shape)
        form = ImageForm(size=side, stored=side, mean=(self.mean,), deviation=(self.deviation,), classes=found.classes)
        return _image_data(form, found, str(folder))


@kind("image_files")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageFiles(DataConfig):
    """CIFAR-10 or CIFAR-100 in their own files, or folders `train/CLASS/*.jpg` and `validation/CLASS/*.jpg`.

    Images of folders are decoded each time they are read; `headjax prepare imagenet` decodes them once. Training cuts
    out random squares and mirrors half of them, see `ImageForm`.

    Attributes:
        path: the folder.
        size: side of the model's input in pixels; 0 is 32 for CIFAR and 224 for others.
        flip: whether training mirrors images.
        mean, deviation: per channel, of pixels scaled to [0, 1]; empty takes CIFAR's or ImageNet's.
        augmentation: random changes of training images, in place of the squares and mirroring.
    """

    path: str
    size: Count = 0
    flip: bool = True
    mean: tuple[float, ...] = ()
    deviation: tuple[Positive, ...] = ()
    augmentation: Augmentation | None = None

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        folder = source_of(self.path)
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder")
        name = find_cifar(folder)
        usual = FORMS[name or "imagenet"]
        found = cifar_rows(folder, name) if name else folder_rows(folder)
        form = self.form(usual, usual.classes if name else found.classes)
        return _image_data(form, found, self.path, Reading(augmentation=self.augmentation))

    def form(self, usual: ImageForm, classes: tuple[str, ...]) -> ImageForm:
        """Return the form of the images.

        Args:
            usual: the form of the task with such images.
            classes: the classes' names.
        """
        size = self.size or usual.size
        return dataclasses.replace(
            usual,
            size=size,
            stored=round(usual.stored * size / usual.size),
            flip=self.flip,
            mean=self.mean or usual.mean,
            deviation=self.deviation or usual.deviation,
            classes=classes,
        )


def _image_data(form: ImageForm, found: ImageRows, place: str, reading: Reading = Reading()) -> TaskData:
    info = {"images": place, "data": found.fingerprint}
    return task_data(form, None, read_when_asked(form, found.rows), info, reading)


def local_images(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Return the rows of folders of images by class (`folder_rows`), or of TFRecords of encoded images.

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
    """Return the rows of CIFAR's own files, binary or of the Python version, or see `local_images`."""
    if not (paths[0].is_dir() and find_cifar(paths[0]) == spec.name):
        return local_images(spec, paths)
    return cifar_rows(paths[0], spec.name).rows


def local_mnist(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Return the rows of MNIST's own files, or see `local_images`."""
    root = paths[0]
    return mnist_rows(root).rows if root.is_dir() and is_mnist(root) else local_images(spec, paths)


BY_CLASS = "folders of images by class"


def _spec(
    name: str, tfds: str, local: Callable[[TaskSpec, Sequence[Path]], Rows], files: str = "", held: str = "test"
) -> TaskSpec:
    source = TfdsSource(tfds, {"train": "train", "validation": held}, {"image": "image", "label": "label"})
    files = f"{files}, {BY_CLASS}" if files else BY_CLASS
    return TaskSpec(name=name, form=FORMS[name], local=local, sources=(source,), vocabulary="none", files=files)


IMAGE_TASKS = (
    _spec("mnist", "mnist:3.0.1", local_mnist, "MNIST's own files"),
    _spec("cifar10", "cifar10:3.0.2", local_cifar, "CIFAR's own files"),
    _spec("cifar100", "cifar100:3.0.2", local_cifar, "CIFAR's own files"),
    _spec("imagenet", "imagenet2012:5.1.0", local_images, held="validation"),
)
