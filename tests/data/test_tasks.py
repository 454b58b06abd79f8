"""Tasks: their forms, local files and rehearsals, without TensorFlow."""

import numpy as np
import pytest

import headjax
from headjax.core.serialize import from_data, to_data
from tests.data.vocabulary import task_rows, write_lines


def test_every_task_has_a_form_that_a_manifest_keeps():
    rehearsed = {type(spec.form) for spec in headjax.data.TASKS.values() if not spec.own}
    assert {type(headjax.data.TASKS[name].form) for name in ONE_OF_EACH_FORM} == rehearsed
    for name, spec in headjax.data.TASKS.items():
        assert spec.name == name
        assert from_data(type(spec.form), to_data(spec.form)) == spec.form
        assert (spec.vocabulary == "none") is not spec.form.reads_text
        assert (spec.vocab_size > 0) is (spec.vocabulary == "bpe")
        for recipe in spec.recipes:
            assert not (recipe.steps and recipe.epochs)
            assert spec.examples or not recipe.epochs


def test_articles_are_documents(tmp_path):
    write_lines(tmp_path / "train_book.txt", " A book", " = is one document =")
    articles = tmp_path / "wiki.valid.raw"
    articles.write_text(" \n = One = \n \n Text . \n \n = = Part = = \n \n More . \n \n = Two = \n \n Other . \n")
    found = task_rows("wikitext", tmp_path)
    assert [row["text"].strip() for row in found["train"]] == ["A book\n = is one document ="]
    assert [row["text"].split()[1] for row in found["validation"]] == ["One", "Two"]
    assert "Part" in found["validation"][0]["text"]


def test_translations(tmp_path):
    write_lines(tmp_path / "train.en", "a dog", "", "a cat")
    write_lines(tmp_path / "train.de", "ein Hund", "leer", "eine Katze")
    write_lines(tmp_path / "val.en", "one")
    write_lines(tmp_path / "val.de", "eins")
    found = task_rows("multi30k", tmp_path)
    assert found["train"] == [{"source": "a dog", "target": "ein Hund"}, {"source": "a cat", "target": "eine Katze"}]
    assert task_rows("newstest2013_ende", tmp_path / "val") == {"validation": found["validation"]}
    table = write_lines(tmp_path / "pairs.tsv", "source\ttarget", "x\ty")
    assert task_rows("newstest2014_ende", table) == {"validation": [{"source": "x", "target": "y"}]}


REAL = {
    "sst2": {"train": 60_614, "validation": 872},
    "cola": {"train": 8551, "validation": 527 + 516},
    "mrpc": {"train": 3275, "validation": 801},
    "stsb": {"train": 5749, "validation": 1500},
    "rte": {"train": 2490, "validation": 277},
    "mnli": {"train": 7906, "validation": 1909},
    "multi30k": {"train": 29_000, "validation": 1014},
    "newstest2013_ende:mt/newstest": {"validation": 3000},
    "squad": {"validation": 10_570},
    "lm1b:lm/lm1b_heldout.dev.tokens": {"train": 11_603, "validation": 613},
    "mnist": {"train": 60_000, "validation": 10_000},
}
"""Rows by split of whole published files, as their manifest and the hash of the rows have them."""


@pytest.mark.filterwarnings("ignore:.*quotation marks are text")
@pytest.mark.parametrize("task", REAL)
def test_real_files(data_dir, monkeypatch, task):
    monkeypatch.setenv("HEADJAX_DATA", str(data_dir))
    name, _, path = task.partition(":")
    opened = headjax.data.DataConfig(task=f"{name}:{data_dir / path}" if path else name).open()
    found = {split: [*source.rows()] for split, source in opened.rows.items()}
    assert {split: len(rows) for split, rows in found.items()} == REAL[task]
    if opened.form.label_names and name != "mnist":
        labels = {row.values["label"] for row in found["validation"]} - {"-"}
        assert labels == {*opened.form.label_names}


def test_unknown_names_are_named():
    with pytest.raises(headjax.DataError, match="'lm1'; did you mean 'lm1b'"):
        headjax.data.DataConfig(task="lm1").open()


def test_choices_that_do_not_suit_the_examples(tmp_path):
    text = write_lines(tmp_path / "a.txt", *(f"a line of {i}\n" for i in range(90)))
    for field, fields in (("config.data.buckets", {"buckets": (2,)}), ("length", {"length": 5000})):
        with pytest.raises(headjax.DataError, match=f"^{field}: "):
            headjax.data.DataConfig(**{"task": str(text), "length": 4, "tokenizer": "bytes"} | fields).load()


ONE_OF_EACH_FORM = (
    "lm1b",
    "bert_pretraining",
    "mnli",
    "sentence_similarity",
    "squad",
    "wmt14_ende",
    "imagenet",
    "wikitext2",
)


@pytest.mark.parametrize("name", ONE_OF_EACH_FORM)
def test_examples_have_the_asked_length_and_are_the_same_every_time(name):
    data, again = (headjax.data.DataConfig(task=name, rehearsal=32).load() for _ in range(2))
    assert data.info["data"] == again.info["data"]
    assert data.info["task"] == name
    example = data.train[0]
    for key, array in example.items():
        np.testing.assert_array_equal(array, again.train[0][key])
    if name == "imagenet":
        assert example["pixel_values"].shape == (3, 32, 32)
    else:
        assert len(example["input_ids"]) <= 2 * 96
        assert data.tokenizer.vocab_size <= 320
    assert len(data.validation) >= 8
    data.validation[len(data.validation) - 1]
    if name == "mnli":
        assert {int(data.train[index]["labels"]) for index in range(len(data.train))} == {0, 1, 2}
