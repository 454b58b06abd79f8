"""The task of one's own files, by their columns and the model, and the output that it needs."""

import dataclasses

import pytest

from headjax.commands.own_data import OwnFiles, find_lesson
from headjax.core.errors import DataError, HeadjaxError
from headjax.data.labelled_text import TextClassification, TextSimilarity
from headjax.models.encoder import Bert
from headjax.models.model import Model
from headjax.models.recipe import with_task
from headjax.models.sublayers import Dense
from headjax.models.tasks import Classification, Regression, SentenceSimilarity
from headjax.tokenizers.learned import byte_tokenizer
from tests import tiny
from tests.data.vocabulary import write_lines

CONFIG = Bert(
    attention=tiny.multi_head(), feed_forward=Dense(32), vocab_size=257, max_length=64, width=16, num_layers=1
).build()


def encoder(output=None):
    """An encoder without parameters; they are not read here."""
    model = Model(CONFIG, {}, tokenizer=byte_tokenizer())
    return model if output is None else model.replace(config=with_task(model, output).config)


def lesson(path, model=None, **fields):
    return find_lesson(encoder() if model is None else model, OwnFiles(train=str(path), **fields))


def test_labels_become_classes_in_order(tmp_path):
    found = lesson(write_lines(tmp_path / "a.tsv", "text\tclass", "x\tred", "y\tblue", "z\tred"))
    assert (found.task, found.output) == ("classification", Classification(classes=2, names=("blue", "red")))
    assert isinstance(found.data, TextClassification)
    assert (found.data.classes, found.data.max_length, found.data.buckets) == (("blue", "red"), 64, (32,))
    assert found.division == f"about 10% of {tmp_path / 'a.tsv'}: rows, by the hash of their first text"
    numbers = lesson(write_lines(tmp_path / "n.tsv", "text\tclass", "x\t10", "y\t9"))
    assert numbers.output == Classification(classes=2, names=("9", "10"))
    plain = lesson(write_lines(tmp_path / "p.tsv", "text\tclass", "x\t1", "y\t0"))
    assert plain.output == Classification(classes=2)
    by_number = lesson(write_lines(tmp_path / "h.tsv", "red\tx", "blue\ty"), columns=("1", "0"))
    assert by_number.output == found.output


def test_a_model_keeps_the_output_that_it_has_for_the_labels(tmp_path):
    path = write_lines(tmp_path / "a.tsv", "text\tlabel", "x\tred", "y\tblue")
    named = lesson(path, encoder(Classification(classes=3, names=("red", "green", "blue"))))
    assert named.output is None
    assert named.data.classes == ("red", "green", "blue")
    other = lesson(path, encoder(Classification(classes=2, names=("good", "bad"))))
    assert other.output == Classification(classes=2, names=("blue", "red"))
    assert lesson(path, encoder(Classification(classes=2))).output == other.output
    plain = write_lines(tmp_path / "p.tsv", "text\tlabel", "x\t1", "y\t0")
    assert lesson(plain, encoder(Classification(classes=2))).output is None
    assert lesson(plain, encoder(Classification(classes=3))).output == Classification(classes=2)
    assert lesson(plain, encoder(Regression())).task == "regression"


def test_scores_of_pairs_are_similarities_divided_by_the_largest(tmp_path):
    path = write_lines(tmp_path / "a.tsv", "text1\ttext2\tscore", "x\ty\t2", "x\tz\t5")
    found = lesson(path)
    assert (found.task, found.output) == ("similarity", SentenceSimilarity())
    assert isinstance(found.data, TextSimilarity)
    assert (found.data.scale, found.data.max_length) == (5.0, 32)
    assert lesson(path, encoder(SentenceSimilarity())).output is None
    assert lesson(path, task="regression").output == Regression()
    assert lesson(path, task="pairs").task == "pairs"
    longer = write_lines(tmp_path / "b.tsv", "text1\ttext2\tscore", "x\ty\t8")
    assert lesson(path, validation=str(longer)).data.scale == 8.0
    assert lesson(path, validation=str(longer)).division == str(longer)


def test_unusable_requests_are_named(tmp_path):
    path = write_lines(tmp_path / "a.tsv", "text\tlabel", "x\tred", "y\tblue")
    with pytest.raises(
        HeadjaxError, match=r"^--task: this model can be fine-tuned for classification, .*, not for text$"
    ):
        lesson(path, task="text")
    with pytest.raises(HeadjaxError, match="no tokenizer"):
        lesson(path, dataclasses.replace(encoder(), tokenizer=None))
    with pytest.raises(DataError, match=r"^--columns: expected TEXT,LABEL or TEXT,SECOND,LABEL$"):
        lesson(path, columns=("text",))
    with pytest.raises(DataError, match=r"similarity need a column of second texts"):
        lesson(path, task="similarity")
