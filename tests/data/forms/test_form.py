from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.data.forms import LabelledForm, SimilarityForm, TranslationForm
from headjax.data.forms.form import language_measure, sequences_hash, text, text_counts, tokenizer_of
from headjax.data.rows import Row


def test_a_vocabulary_is_learned_from_all_texts_of_a_row():
    row = Row("line 1", {"source": "a dog", "target": "ein Hund"})
    assert list(TranslationForm().texts(row)) == ["a dog", "ein Hund"]
    single = Row("line 2", {"text": "a film", "label": 1})
    assert list(LabelledForm().texts(single)) == ["a film"]
    assert set(LabelledForm().wanted) == {"text", "label"}
    assert set(LabelledForm(pairs=True).wanted) == set(SimilarityForm().wanted) == {"text", "second", "label"}


def test_text_must_be_there():
    row = Row("a.tsv: line 3", {"text": " ", "number": 3})
    with pytest.raises(DataError, match=r"^a.tsv: line 3: text is blank$"):
        text(row, "text")
    with pytest.raises(DataError, match=r"^a.tsv: line 3: number is 3$"):
        text(row, "number")
    with pytest.raises(DataError, match=r"^tokenizer: text needs one$"):
        tokenizer_of(None)


def test_hashes_and_counts():
    ids = [np.arange(3), np.arange(2)]
    found = sequences_hash({"input_ids": ids}, {})
    assert found == sequences_hash({"input_ids": [one.astype(np.int32) for one in ids]}, {})
    assert found != sequences_hash({"input_ids": ids[::-1]}, {})
    assert text_counts(["ä b", "c"], 7) == {"tokens": 7, "words": 3, "bytes": 5}
    measured = language_measure({"words_per_token": 0.5, "tokens": 7})
    assert (measured.measure, measured.arguments) == ("language_modelling", {"words_per_token": 0.5})
