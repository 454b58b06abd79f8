"""Made-up rows in the form of a task, to rehearse a run in seconds before its data is prepared.

Text is drawn from the Python language reference (`help("topics")`). Labels follow from the examples by rule: the class
of a text is its part of the reference, its number its count of words; a translation has the source's words in reverse;
an answer is the word after the one asked about; the class of an image is the height of a bright band.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
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
    return (Row(f"made-up row {index}", _values(form, index)) for index in itertools.count())


def letters_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Return a tokenizer like BERT's whose pieces are single characters."""
    letters = sorted({letter for text in texts for letter in text.lower() if not letter.isspace()})
    pieces = [*SPECIAL.values(), *letters, *(f"##{letter}" for letter in letters)]
    return wordpiece_of(pieces[:VOCABULARY], "made-up vocabulary")


@functools.cache
def _texts() -> tuple[str, ...]:
    texts = tuple(topic.values["text"] for topic in reference_topics())
    if not texts:
        raise DataError("rehearsal: this Python carries no language reference (pydoc_data)")
    return texts


@functools.cache
def _sentences() -> tuple[list[str], ...]:
    """Return the words of sentences, two to `WORDS` of each, in the reference's order."""
    found = (sentence.split()[:WORDS] for text in _texts()[:20] for sentence in sentences(text))
    return tuple(words for words in found if len(words) > 1)


def _values(form: Form, index: int) -> dict[str, Any]:
    """Return the values of a row by its number; forms of no other rule get documents."""
    found, classes = _sentences(), len(form.label_names)
    words = found[index % len(found)]
    if isinstance(form, ImageForm):
        return _image(form, index % classes, index)
    if isinstance(form, LabelledForm):
        part = index % max(classes, 1)
        words = found[(part * len(found) // max(classes, 1) + index) % len(found)]
        middle = len(words) // 2 if form.pairs else len(words)
        texts = {"text": " ".join(words[:middle])} | ({"second": " ".join(words[middle:])} if form.pairs else {})
        return texts | {"label": part if classes else float(len(words))}
    if isinstance(form, SimilarityForm):
        second = words[: len(words) // 2 + index % 2]
        return {"text": " ".join(words), "second": " ".join(second), "label": form.scale * (index % 2)}
    if isinstance(form, TranslationForm):
        return {"source": " ".join(words[:6]), "target": " ".join(words[:6][::-1])}
    if isinstance(form, QuestionForm):
        place = index % (len(words) - 1)
        answer = {"answers": [words[place + 1]], "start": len(" ".join(words[: place + 1])) + 1}
        return {"id": str(index), "question": f"After {words[place][:8]}?", "context": " ".join(words)} | answer
    return {"text": _texts()[index % len(_texts())][:240]}


def _image(form: ImageForm, label: int, index: int) -> dict[str, Any]:
    side, channels = form.stored, len(form.mean)
    image = np.random.default_rng(index).integers(0, 64, (side, side, channels)).astype(np.uint8)
    top = label * (side - 4) // len(form.classes)
    image[top : top + 4] += 160
    return {"image": image, "label": label}
