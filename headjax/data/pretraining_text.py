"""BERT's pre-training on the user's text, from memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from headjax.core.errors import DataError, require
from headjax.core.serialize import kind
from headjax.data.passages import Document
from headjax.data.prepared.form import Split
from headjax.data.prepared.pretraining import PretrainingForm
from headjax.data.prepared.rows import TaskRow, fingerprint
from headjax.data.split import split
from headjax.data.task import DataConfig, Source, TaskData
from headjax.data.tasks.language import documents
from headjax.data.text_files import find_files
from headjax.tokenizers.tokenizer import Tokenizer


@kind("pretraining_text")
@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingText(DataConfig):
    """Text files as pairs for next-sentence prediction with tokens masked; see `PretrainingForm`.

    Attributes:
        path: a file, a folder or a glob pattern.
        vocabulary: a BERT's `vocab.txt`, to train a model that brings no tokenizer.
        length: most tokens of an example.
        max_predictions: most tokens to predict in one.
        masking: `dynamic` (anew every time an example is read) or `static`.
        copies: times that the text is gone through, with other pairs and masks.
        validation_fraction: how much of the text is held out, about.
        seed: of the pairs, and of static masks.
    """

    path: str
    vocabulary: str = ""
    length: int = 128
    max_predictions: int = 20
    masking: Literal["static", "dynamic"] = "dynamic"
    copies: int = 1
    validation_fraction: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        fraction = self.validation_fraction
        require(0.0 < fraction < 1.0, "validation_fraction", f"must be within (0, 1), got {fraction}")
        require(self.seed >= 0, "seed", f"must not be negative, got {self.seed}")
        self.form()

    def form(self) -> PretrainingForm:
        """How documents become examples."""
        return PretrainingForm(
            length=self.length, max_predictions=self.max_predictions, masking=self.masking, copies=self.copies
        )

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        from headjax.tokenizers.vocabularies import wordpiece_tokenizer

        if tokenizer is None:
            if not self.vocabulary:
                raise DataError("vocabulary: the model brings no tokenizer; name a vocab.txt")
            tokenizer = wordpiece_tokenizer(self.vocabulary)
        self.form().check(tokenizer)
        found = split([one for file in find_files(self.path) for one in documents(file)], self.validation_fraction)
        train, counts, data = self._encode(tokenizer, found.train, "train")
        validation, held, _ = self._encode(tokenizer, found.validation, "validation")
        info = {
            "text": self.path,
            "tokenizer": tokenizer.fingerprint,
            "data": data,
            "train": counts,
            "validation": held,
        }
        return TaskData(tokenizer, train, validation, info)

    def _encode(
        self, tokenizer: Tokenizer, found: Sequence[Document], name: Split
    ) -> tuple[Source, dict[str, int], str]:
        """The examples of a split, what they count, and the hash of their text."""
        form, rows = self.form(), [TaskRow(document.name, {"text": document.text}) for document in found]
        encoded = form.encode(tokenizer, rows, name, (self.seed,))
        if not encoded.records:
            raise DataError(f"{self.path}: too little text to make examples of the {name} split")
        sizes = np.asarray([form.tokens(record) for record in encoded.records])
        source = form.train(tokenizer, encoded.records, sizes)
        return source, {"examples": len(encoded.records), **encoded.counts}, fingerprint(rows)
