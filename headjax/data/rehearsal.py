"""Made-up rows in the form of a task, to rehearse a run in seconds before its data is prepared.

Texts are from the Python language reference (`help("topics")`); classes and numbers follow one another.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headjax.data.forms import Form
from headjax.data.rows import Row
from headjax.data.text_rows import reference_topics
from headjax.tokenizers.tokenizer import Tokenizer
from headjax.tokenizers.vocabularies import WORDPIECE_SPECIAL as SPECIAL
from headjax.tokenizers.vocabularies import wordpiece_of

VOCABULARY = 320
"""Number of tokens of the vocabularies learned here."""

CHARACTERS = 120
"""Number of characters of a text."""


def made_up_rows(form: Form) -> Iterator[Row]:
    """Yield rows without end, the same in every process, by the types of the form's fields.

    All texts of a row are the same, and the answer to a question is the first word.
    """
    texts = [row.values["text"].strip()[:CHARACTERS] for row in reference_topics()]
    for index in itertools.count():
        text, classes = texts[index % len(texts)], len(form.label_names)
        values: dict[str, Any] = {
            "text": text,
            "texts": (text.split()[0],),
            "integer": 0,
            "number": float(index % 2),
            "label": index % classes if classes else float(index % 6),
        }
        if "image" in form.wanted.values():
            shape = (form.stored, form.stored, len(form.mean))  # type: ignore[attr-defined]
            values["image"] = np.random.default_rng(index).integers(0, 256, shape).astype(np.uint8)
        yield Row(f"made-up row {index}", {name: values[what] for name, what in form.wanted.items()})


def letters_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Return a tokenizer like BERT's whose pieces are single characters."""
    letters = sorted({letter for text in texts for letter in text.lower() if not letter.isspace()})
    pieces = [*SPECIAL.values(), *letters, *(f"##{letter}" for letter in letters)]
    return wordpiece_of(pieces[:VOCABULARY], "made-up vocabulary")
