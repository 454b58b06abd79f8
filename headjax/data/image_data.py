"""The kinds of data that are the user's own images."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import cast

from headjax.core.errors import DataError, require
from headjax.core.serialize import kind
from headjax.data.augmentation import Augmentation
from headjax.data.forms.images import ImageForm
from headjax.data.image_rows import ImageRows, cifar_rows, find_cifar, folder_rows, is_mnist, mnist_rows
from headjax.data.loading import Reading, task_data
from headjax.data.roots import data_folder
from headjax.data.store import read_when_asked
from headjax.data.task import DataConfig, TaskData
from headjax.data.tasks import find_task
from headjax.data.tasks.image_tasks import MNIST_DEVIATION, MNIST_MEAN
from headjax.tokenizers.tokenizer import Tokenizer


@kind("mnist")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Mnist(DataConfig):
    """The files of MNIST, or of another data set in its format (Fashion-MNIST, KMNIST): see `ImageForm`.

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
        folder = data_folder("mnist", self.path, ("images/mnist", "mnist"), is_mnist)
        found = mnist_rows(folder)
        side = min(found.rows["train"].at(0).values["image"].shape)
        form = ImageForm(size=side, stored=side, mean=(self.mean,), deviation=(self.deviation,), classes=found.classes)
        return image_data(form, found, str(folder))


@kind("image_files")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageFiles(DataConfig):
    """CIFAR-10 or CIFAR-100 in their own files, or folders `train/CLASS/*.jpg` and `validation/CLASS/*.jpg`.

    Images of folders are decoded every time they are read; `headjax prepare imagenet` decodes them once. Training cuts
    random squares and mirrors half of them, see `ImageForm`.

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
        folder = Path(self.path).expanduser()
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder")
        name = find_cifar(folder)
        usual = cast(ImageForm, find_task(name or "imagenet").form)
        found = cifar_rows(folder, name) if name else folder_rows(folder)
        form = self.form(usual, usual.classes if name else found.classes)
        return image_data(form, found, self.path, Reading(augmentation=self.augmentation))

    def form(self, usual: ImageForm, classes: tuple[str, ...]) -> ImageForm:
        """Return how images become examples.

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


def image_data(form: ImageForm, found: ImageRows, place: str, reading: Reading = Reading()) -> TaskData:
    """Return images as a task's data; each is read whenever it is asked for."""
    info = {"images": place, "data": found.fingerprint}
    return task_data(form, None, read_when_asked(form, found.rows), info, reading)
