"""Text and prepared shards that several tests read."""

import pytest

from headjax.data.rows import RowSource
from headjax.data.store import prepare
from tests.data import films
from tests.data.vocabulary import film_tokenizer


@pytest.fixture(scope="session")
def wordpiece(tmp_path_factory):
    """A BERT's tokenizer."""
    return film_tokenizer(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="session")
def film_rows():
    return {"train": RowSource.of(films.rows(70)), "validation": RowSource.of(films.rows(15, seed=1))}


@pytest.fixture(scope="session")
def prepared_films(wordpiece, film_rows, tmp_path_factory):
    """A folder of prepared shards; tests must not change it."""
    folder = tmp_path_factory.mktemp("prepared") / "films"
    prepare("films", films.FORM, film_rows, wordpiece, folder, shard_bytes=films.SIZE)
    return folder
