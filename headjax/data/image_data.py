"""Data of images: MNIST, CIFAR, and the user's own folders of images by class."""

from __future__ import annotations

import dataclasses

from headjax.core.errors import DataError
from headjax.core.fields import Count, Positive
from headjax.core.serialize import kind
from headjax.data.augmentation import Augmentation
from headjax.data.files import data_folder, source_of
from headjax.data.forms import ImageForm
from headjax.data.image_rows import ImageRows, cifar_rows, find_cifar, folder_rows, is_mnist, mnist_rows
from headjax.data.loading import Reading, read_when_asked, task_data
from headjax.data.task import DataConfig, TaskData
from headjax.data.tasks import MNIST_DEVIATION, MNIST_MEAN, find_task
from headjax.tokenizers.tokenizer import Tokenizer


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
        folder = data_folder("mnist", self.path, find_task("mnist").folders, is_mnist)
        found = mnist_rows(folder)
        side = min(found.rows["train"].at(0).values["image"].shape)
        form = ImageForm(size=side, stored=side, mean=(self.mean,), deviation=(self.deviation,), classes=found.classes)
        return _image_data(form, found, str(folder))


@kind("image_files")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageFiles(DataConfig):
    """CIFAR-10 or CIFAR-100 in their binary files, or folders `train/CLASS/*.jpg` and `validation/CLASS/*.jpg`.

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
        usual = find_task(name or "imagenet").form
        assert isinstance(usual, ImageForm)
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
