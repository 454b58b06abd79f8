"""A tiny BERT and what it reads, for tests of measures and tasks."""

import pytest

from tests.data.vocabulary import WORDS, film_tokenizer
from tests.hub.directories import BERT, model_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder for a file's tests."""
    return tmp_path_factory.mktemp("evaluation")


@pytest.fixture(scope="module")
def tokenizer(folder):
    return film_tokenizer(folder)


@pytest.fixture(scope="module")
def bert(tokenizer):
    """An encoder with positions enough for questions."""
    fields = BERT | {"vocab_size": len(WORDS), "max_position_embeddings": 96, "num_labels": 2}
    return model_of(fields).replace(tokenizer=tokenizer)
