"""A few made-up examples in the form of any task, to rehearse a run in seconds before its data is prepared.

They show whether a config runs, and nothing else. Text is the Python language reference (`help("topics")`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from headjax.core.errors import DataError
from headjax.core.fields import Size
from headjax.core.serialize import kind
from headjax.data.augmentation import Augmentation
from headjax.data.corpus import reference_topics
from headjax.data.forms import Form, ImageForm, LabelledForm, QuestionForm, TranslationForm
from headjax.data.forms.pretraining import sentences
from headjax.data.loading import Reading, load_rows
from headjax.data.rows import Row, Split, fingerprint
from headjax.data.task import DataConfig, TaskData
from headjax.data.tasks import find_task
from headjax.tokenizers.learned import train_bpe
from headjax.tokenizers.tokenizer import Tokenizer
from headjax.tokenizers.vocabularies import WORDPIECE_SPECIAL as SPECIAL
from headjax.tokenizers.vocabularies import wordpiece_of

VOCABULARY = 320
"""Number of tokens of the vocabularies learned here."""

WORDS = 12
"""Greatest number of words of a sentence."""


@kind("rehearsal")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rehearsal(DataConfig):
    """Made-up rows, encoded in the form of a task.

    Labels follow from the examples by rule: the class of a text is the part of the reference it stands in, its number
    is its count of words, a translation has the source's words in reverse, an answer is the word after the one asked
    about, and the class of an image is the height of a bright band.

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
