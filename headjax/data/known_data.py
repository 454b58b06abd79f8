"""Data of tasks by name: GLUE, images, and made-up examples in the form of any task."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from headjax.core.class_names import find_class, reorder, tell_nothing
from headjax.core.errors import DataError, require
from headjax.core.fields import Count, Positive, Size, unknown_name
from headjax.core.serialize import kind
from headjax.data.augmentation import Augmentation
from headjax.data.corpus import reference_topics
from headjax.data.files import search, source_of
from headjax.data.forms import Form, ImageForm, LabelledForm, QuestionForm, TranslationForm
from headjax.data.forms.preprocessing import Preprocessing
from headjax.data.forms.pretraining import sentences
from headjax.data.image_rows import ImageRows, cifar_rows, find_cifar, folder_rows, is_mnist, mnist_rows
from headjax.data.labelled_text import LabelledText, TextClassification, TextSimilarity
from headjax.data.loading import Reading, load_rows, read_when_asked, task_data
from headjax.data.local_files import labelled_table, layout_fields
from headjax.data.rows import Row, Split, fingerprint
from headjax.data.task import DataConfig, TaskData
from headjax.data.task_spec import TaskSpec
from headjax.data.tasks import GLUE, MNIST_DEVIATION, MNIST_MEAN, find_task
from headjax.tokenizers.learned import train_bpe
from headjax.tokenizers.tokenizer import Tokenizer
from headjax.tokenizers.vocabularies import WORDPIECE_SPECIAL as SPECIAL
from headjax.tokenizers.vocabularies import wordpiece_of


@kind("glue")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Glue(DataConfig):
    """A task of GLUE from local files.

    Attributes:
        name: a name of `GLUE`.
        path: the task's folder; empty looks for it under the folder that the environment variable HEADJAX_DATA names.
        similarity: for `stsb`, whether each sentence is read by itself and labels are divided by 5.
        max_length: number of tokens of an example.
        vocabulary, buckets: see `LabelledText`.
        classes: the task's class names in a model's order; empty for GLUE's.
    """

    name: str
    path: str = ""
    similarity: bool = False
    max_length: Size = 128
    vocabulary: str = ""
    buckets: tuple[Size, ...] = ()
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.name in GLUE, "name", unknown_name("GLUE task", self.name, GLUE))
        require(not self.similarity or self.name == "stsb", "similarity", "only stsb has similarities as labels")
        own = self.spec.form.label_names
        ordered = not self.classes or reorder(self.classes, own) is not None
        require(ordered, "classes", f"the classes of {self.name} are {', '.join(own)}, got {', '.join(self.classes)}")

    @property
    def spec(self) -> TaskSpec:
        """The task."""
        return GLUE[self.name]

    def for_classes(self, names: Sequence[str]) -> Glue:
        own = self.spec.form.label_names
        if tell_nothing(names) or not own:
            return self
        if reorder(names, own) is None:
            raise DataError(f"{self.name}: its classes are {', '.join(own)}; the model's are {', '.join(names)}")
        return dataclasses.replace(self, classes=tuple(names))

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        table = self.table()
        data = table.load_table(table.read(self.spec.rules), tokenizer, () if self.similarity else self.spec.metrics)
        if not self.classes or data.measured is None:
            return data
        # GLUE's F1 is that of its class 1, whatever number the model has for it.
        positive = find_class(self.spec.form.label_names[1], self.classes)
        arguments = {**data.measured.arguments, "positive": positive}
        return data._replace(measured=data.measured._replace(arguments=arguments))

    def table(self) -> LabelledText:
        """Return the task's files as a table."""
        own = {"max_length": self.max_length, "vocabulary": self.vocabulary, "buckets": self.buckets}
        fields: dict[str, Any] = layout_fields(self.spec, self.path) | own
        if self.similarity:
            return TextSimilarity(**fields, scale=5.0)
        table = labelled_table(self.spec, fields)
        return table.for_classes(self.classes) if self.classes and isinstance(table, TextClassification) else table


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
        folders = find_task("mnist").folders
        folder = search("mnist", self.path, folders, lambda folder: folder if is_mnist(folder) else None)
        found = mnist_rows(folder)
        side = min(found.rows["train"].at(0).values["image"].shape)
        form = ImageForm(size=side, stored=side, mean=(self.mean,), deviation=(self.deviation,), classes=found.classes)
        return _image_data(form, found, str(folder))


@kind("image_files")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageFiles(DataConfig):
    """CIFAR-10 or CIFAR-100 in their binary files, or folders `train/CLASS/*.jpg` and `validation/CLASS/*.jpg`.

    To judge a model `validation` is enough; its folders are all of the model's classes.

    Images of folders are decoded each time they are read; `headjax prepare imagenet` decodes them once. Training cuts
    out random squares and mirrors half of them, see `ImageForm`.

    Attributes:
        path: the folder.
        size: side of the model's input in pixels; 0 is 32 for CIFAR and 224 for others.
        flip: whether training mirrors images.
        mean, deviation: per channel, of pixels scaled to [0, 1]; empty takes CIFAR's or ImageNet's.
        augmentation: random changes of training images, in place of the squares and mirroring.
        preprocessing: what the model's files say of images; the fields above count before it.
    """

    path: str
    size: Count = 0
    flip: bool = True
    mean: tuple[float, ...] = ()
    deviation: tuple[Positive, ...] = ()
    augmentation: Augmentation | None = None
    preprocessing: Preprocessing | None = None

    def for_files(self, files: Mapping[str, bytes]) -> ImageFiles:
        return dataclasses.replace(self, preprocessing=self.preprocessing or Preprocessing.of(files))

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        folder = source_of(self.path)
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder")
        name = find_cifar(folder)
        usual = cast(ImageForm, find_task(name or "imagenet").form)
        found = cifar_rows(folder, name) if name else folder_rows(folder)
        form = self.form(usual, usual.classes if name else found.classes)
        return _image_data(form, found, self.path, Reading(augmentation=self.augmentation))

    def form(self, usual: ImageForm, classes: tuple[str, ...]) -> ImageForm:
        """Return the form of the images."""
        usual = usual.preprocessed(self.preprocessing)
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


VOCABULARY = 320
"""Number of tokens of the vocabularies learned here."""

WORDS = 12
"""Greatest number of words of a sentence."""


@kind("rehearsal")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rehearsal(DataConfig):
    """Made-up rows in the form of a task, to rehearse a run in seconds before its data is prepared.

    Such runs show whether a config runs, and nothing else. Text is the Python language reference (`help("topics")`).

    Labels follow from the examples by rule. The class of a text is its part of the reference, and its number is its
    count of words. A translation has the source's words in reverse, and an answer is the word after the one asked
    about. The class of an image is the height of a bright band.

    Attributes:
        task: name of the task.
        length: number of tokens of an example, for tasks of text.
        size: side of an image in pixels.
        train, validation: number of rows of each split.
        augmentation: see `PreparedData`.
    """

    task: str
    length: Size = 96
    size: Size = 32
    train: Size = 32
    validation: Size = 8
    augmentation: Augmentation | None = None

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        spec = find_task(self.task)
        form = self.small(spec.form)
        rows = list(itertools.islice(made_up_rows(form), self.train + self.validation))
        texts = [text for row in rows for text in form.texts(row)]
        if tokenizer is None and form.reads_text:
            tokenizer = train_bpe(texts, VOCABULARY) if spec.vocabulary == "bpe" else letters_tokenizer(texts)
        splits: dict[Split, list[Row]] = {"train": rows[: self.train], "validation": rows[self.train :]}
        info = {"text": "made up to rehearse", "task": self.task, "data": fingerprint(splits["train"])}
        reading = Reading(metrics=spec.metrics, augmentation=self.augmentation)
        return load_rows(form, splits, tokenizer if form.reads_text else None, info, reading)

    def small(self, form: Form) -> Form:
        """Return the form with this length or size."""
        names = {field.name for field in dataclasses.fields(form)}
        sizes = {"length": self.length, "stride": self.length // 4, "size": self.size, "stored": self.size + 4}
        return dataclasses.replace(form, **{name: size for name, size in sizes.items() if name in names})


def made_up_rows(form: Form) -> Iterator[Row]:
    """Yield rows without end, the same in every process."""
    make: Callable[[Any, int], dict[str, Any]] = _document
    for cls, maker in MAKERS.items():
        make = maker if isinstance(form, cls) else make
    return (Row(f"made-up row {index}", make(form, index)) for index in itertools.count())


def letters_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Return a tokenizer like BERT's whose pieces are single characters."""
    letters = sorted({letter for text in texts for letter in text.lower() if not letter.isspace()})
    pieces = [*SPECIAL.values(), *letters, *(f"##{letter}" for letter in letters)]
    return wordpiece_of(pieces[:VOCABULARY], "made-up vocabulary")


@functools.cache
def _texts() -> tuple[str, ...]:
    texts = tuple(topic.text for topic in reference_topics())
    if not texts:
        raise DataError("rehearsal: this Python carries no language reference (pydoc_data)")
    return texts


@functools.cache
def _sentences() -> tuple[str, ...]:
    """Return sentences of two to `WORDS` words in the reference's order; longer ones are cut."""
    found = [" ".join(sentence.split()[:WORDS]) for text in _texts()[:20] for sentence in sentences(text)]
    return tuple(sentence for sentence in found if len(sentence.split()) > 1)


def _document(form: Form, index: int) -> dict[str, Any]:
    return {"text": _texts()[index % len(_texts())][:240]}


def _labelled(form: LabelledForm, index: int) -> dict[str, Any]:
    found, classes = _sentences(), len(form.classes)
    part = index % max(classes, 1)
    words = found[(part * len(found) // max(classes, 1) + index) % len(found)].split()
    label = part if classes else float(len(words))
    if not form.pairs:
        return {"text": " ".join(words), "label": label}
    middle = len(words) // 2
    return {"text": " ".join(words[:middle]), "second": " ".join(words[middle:]), "label": label}


def _translation(form: TranslationForm, index: int) -> dict[str, Any]:
    words = _sentences()[index % len(_sentences())].split()[:6]
    return {"source": " ".join(words), "target": " ".join(reversed(words))}


def _question(form: QuestionForm, index: int) -> dict[str, Any]:
    words = _sentences()[index % len(_sentences())].split()
    place = index % (len(words) - 1)
    start = len(" ".join(words[: place + 1])) + 1
    answer = words[place + 1]
    question = f"After {words[place][:8]}?"
    return {"id": str(index), "question": question, "context": " ".join(words), "answers": [answer], "start": start}


def _image(form: ImageForm, index: int) -> dict[str, Any]:
    label = index % len(form.classes)
    side, channels = form.stored, len(form.mean)
    image = np.random.default_rng(index).integers(0, 64, (side, side, channels)).astype(np.uint8)
    top = label * (side - 4) // len(form.classes)
    image[top : top + 4] += 160
    return {"image": image, "label": label}


MAKERS: dict[type[Form], Callable[[Any, int], dict[str, Any]]] = {
    LabelledForm: _labelled,
    TranslationForm: _translation,
    QuestionForm: _question,
    ImageForm: _image,
}
"""Functions from a form and a row's number to the row's values; other forms get documents."""
