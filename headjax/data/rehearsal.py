"""Made-up rows in the form of a task, to rehearse a run in seconds before its data is prepared.

Text is the Python language reference (`help("topics")`). Labels follow from the examples by rule: the class of a text
is its part of the reference, its number its count of words; a translation has the source's words in reverse; an answer
is the word after the one asked about; the class of an image is the height of a bright band.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from headjax.core.errors import DataError
from headjax.data.corpus import reference_topics
from headjax.data.forms import Form, ImageForm, LabelledForm, QuestionForm, SimilarityForm, TranslationForm
from headjax.data.forms.pretraining import sentences
from headjax.data.rows import Row
from headjax.tokenizers.tokenizer import Tokenizer
from headjax.tokenizers.vocabularies import WORDPIECE_SPECIAL as SPECIAL
from headjax.tokenizers.vocabularies import wordpiece_of

VOCABULARY = 320
"""Number of tokens of the vocabularies learned here."""

WORDS = 12
"""Greatest number of words of a sentence."""


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


def _similarity(form: SimilarityForm, index: int) -> dict[str, Any]:
    words = _sentences()[index % len(_sentences())].split()
    half = len(words) // 2
    return {"text": " ".join(words), "second": " ".join(words[: half + index % 2]), "label": form.scale * (index % 2)}


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
    SimilarityForm: _similarity,
    TranslationForm: _translation,
    QuestionForm: _question,
    ImageForm: _image,
}
"""Functions from a form and a row's number to the row's values; other forms get documents."""
