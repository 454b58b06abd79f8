"""Tasks over local files of every format, without TensorFlow."""

from __future__ import annotations

import json

import pytest

from headjax.core.errors import DataError
from headjax.core.serialize import from_data, to_data
from headjax.data.tasks import TASKS, find_task
from tests.data.vocabulary import write_lines


def read(name, *paths):
    """The values of a task's rows by split."""
    spec = find_task(name)
    return {split: [row.values for row in source.rows()] for split, source in spec.local(spec, paths).items()}


def counts(name, *paths):
    spec = find_task(name)
    return {split: sum(1 for _ in source.rows()) for split, source in spec.local(spec, paths).items()}


def test_every_task_has_a_form_that_a_manifest_keeps():
    for name, spec in TASKS.items():
        assert spec.name == name
        assert from_data(type(spec.form), to_data(spec.form)) == spec.form
        assert (spec.vocabulary == "none") is not spec.form.reads_text
        assert (spec.vocab_size > 0) is (spec.vocabulary == "bpe")


def test_books_lose_their_licence_and_articles_are_documents(tmp_path):
    book = write_lines(
        tmp_path / "train_book.txt",
        "Legal words",
        "*** START OF THIS PROJECT GUTENBERG EBOOK A BOOK ***",
        "The story.",
        "*** END OF THIS PROJECT GUTENBERG EBOOK A BOOK ***",
        "More legal words",
    )
    articles = tmp_path / "wiki.valid.raw"
    articles.write_text(" \n = One = \n \n Text . \n \n = = Part = = \n \n More . \n \n = Two = \n \n Other . \n")
    found = read("text", tmp_path)
    assert [row["text"].strip() for row in found["train"]] == ["The story."]
    assert [row["text"].split()[1] for row in found["validation"]] == ["One", "Two"]
    assert "Part" in found["validation"][0]["text"]
    assert book.exists()


def test_lines_are_sentences(tmp_path):
    write_lines(tmp_path / "train.txt", "One .", "", " Two . ")
    write_lines(tmp_path / "dev.txt", "Three .")
    expected = {"train": [{"text": "One ."}, {"text": "Two ."}], "validation": [{"text": "Three ."}]}
    assert read("lm1b", tmp_path) == expected


def test_translations(tmp_path):
    write_lines(tmp_path / "train.en", "a dog", "", "a cat")
    write_lines(tmp_path / "train.de", "ein Hund", "leer", "eine Katze")
    write_lines(tmp_path / "val.en", "one")
    write_lines(tmp_path / "val.de", "eins")
    found = read("multi30k", tmp_path)
    assert found["train"] == [{"source": "a dog", "target": "ein Hund"}, {"source": "a cat", "target": "eine Katze"}]
    assert read("newstest2013_ende", tmp_path / "val") == {"validation": found["validation"]}
    table = write_lines(tmp_path / "pairs.tsv", "source\ttarget", "x\ty")
    assert read("newstest2014_ende", table) == {"validation": [{"source": "x", "target": "y"}]}
    write_lines(tmp_path / "val.de", "eins", "zwei")
    with pytest.raises(DataError, match=r"val.de: 2 lines, but val.en has 1"):
        read("multi30k", tmp_path)


def test_questions_by_the_words_of_their_names(tmp_path):
    for name in ("more", "dev-v1.1", "train-v1.1"):
        asked = {"id": name, "question": "q", "answers": [{"text": "a", "answer_start": 0}]}
        (tmp_path / f"{name}.json").write_text(
            json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [asked]}]}]})
        )

    def ids(*names):
        found = read("squad", *(tmp_path / f"{name}.json" for name in names))
        return {split: [row["id"] for row in rows] for split, rows in found.items()}

    assert ids("more", "dev-v1.1") == {"train": ["more"], "validation": ["dev-v1.1"]}
    assert ids("train-v1.1", "more", "dev-v1.1") == {"train": ["train-v1.1"], "validation": ["dev-v1.1"]}
    assert ids("dev-v1.1") == {"validation": ["dev-v1.1"]}
    with pytest.raises(DataError, match=r"train-v1.1.json: no file to evaluate on"):
        ids("train-v1.1")


def test_real_files(data_dir):
    """Whole published files: counts as their manifest has them."""
    glue = data_dir / "glue"
    assert counts("sst2", glue / "SST-2") == {"train": 60_614, "validation": 872}
    assert counts("iwslt14_deen", data_dir / "mt" / "iwslt14" / "valid")["train"] > 6_500
    assert counts("newstest2013_ende", data_dir / "mt" / "newstest") == {"validation": 3000}
    assert counts("squad", data_dir / "squad" / "dev-v1.1.from-explorer.json") == {"validation": 10_570}
    found = counts("lm1b", data_dir / "lm" / "lm1b_heldout.dev.tokens")
    assert sum(found.values()) == 12_216


def test_no_such_task():
    with pytest.raises(DataError, match="unknown task 'lm1'; did you mean 'lm1b'"):
        find_task("lm1")
