"""Predictions against the model's own forward pass."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import headjax
from headjax.core.errors import HeadjaxError
from headjax.evaluation.predictions import Inputs, predict, predict_task, read_inputs
from headjax.models.tasks import Classification, NoTask, Regression, Span
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests import tiny
from tests.closeness import assert_close
from tests.commands.test_every_family import BERT
from tests.data.test_image_data import write_mnist
from tests.data.vocabulary import WORDS, write_lines, write_vocabulary
from tests.hub.directories import model_of

TEXTS = [f"{WORDS[5]} {WORDS[6]}", WORDS[7], f"{WORDS[8]} {WORDS[9]} {WORDS[10]}"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    tokenizer = wordpiece_tokenizer(write_vocabulary(tmp_path_factory.mktemp("vocabulary")))
    fields = BERT | {"vocab_size": len(WORDS), "max_position_embeddings": 96, "num_labels": 2}
    return model_of(fields).replace(tokenizer=tokenizer)


def test_classes_by_name_with_their_probabilities(bert):
    named = headjax.with_task(bert, Classification(classes=2, names=("bad", "good")))
    found = predict(named, Inputs(TEXTS, given=["x", "y", "z"]), batch_size=2)
    batch = headjax.text_batch(named.tokenizer, TEXTS)
    expected = np.asarray(jax.nn.softmax(named(batch).logits))
    for row, one in enumerate(found):
        assert (one["text"], one["given"]) == (TEXTS[row], "xyz"[row])
        assert_close(list(one["probabilities"].values()), expected[row], sums=tiny.SUMS)
        assert one["label"] == ("bad", "good")[int(expected[row].argmax())]
        assert one["probability"] == max(one["probabilities"].values())


def test_numbers(bert):
    model = headjax.with_task(bert, Regression())
    found = predict(model, Inputs(TEXTS, TEXTS))
    logits = np.asarray(model(headjax.text_batch(model.tokenizer, TEXTS, TEXTS)).logits)[:, 0]
    assert_close([one["number"] for one in found], logits, sums=tiny.SUMS)


def test_embeddings_are_means_and_pairs_have_cosines(bert):
    model = headjax.with_task(bert, NoTask())
    found = np.asarray([one["embedding"] for one in predict(model, Inputs(TEXTS), batch_size=2)])
    alone = np.asarray(model(headjax.text_batch(model.tokenizer, TEXTS[1:2])).hidden)[0, :3]  # [CLS] word [SEP]
    assert_close(found[1], alone.mean(axis=0), sums=tiny.SUMS)
    pairs = predict(model, Inputs(TEXTS[:2], TEXTS[1:]))
    cosine = found[0] @ found[1] / np.linalg.norm(found[0]) / np.linalg.norm(found[1])
    assert_close(pairs[0]["similarity"], cosine, sums=tiny.SUMS)


def test_answers_are_spans_of_the_context(bert):
    model = headjax.with_task(bert, Span())
    contexts = [" ".join(WORDS[5:9]), " ".join(WORDS[9:14])]
    found = predict(model, Inputs(TEXTS[:2], contexts))
    for one, context in zip(found, contexts, strict=True):
        assert one["answer"]
        assert one["answer"] in context
        assert np.isfinite(one["score"])
    with pytest.raises(HeadjaxError, match="question and context"):
        predict(model, Inputs(TEXTS))


def test_images(tmp_path):
    from tests.commands.test_every_family import VIT

    write_mnist(tmp_path)
    found = predict_task(model_of(VIT), f"mnist:{tmp_path}", limit=3, batch_size=2)
    assert [one["example"] for one in found] == [0, 1, 2]
    assert all(one["given"] in ("0", "1") for one in found)


def test_files_with_and_without_labels(tmp_path):
    write_lines(tmp_path / "with.tsv", "sentence1\tsentence2\tlabel", "a\tb\t1", "c\td\t0")
    write_lines(tmp_path / "without.tsv", "text", "a", "c")
    write_lines(tmp_path / "lines.txt", "a", "", "c")
    write_lines(tmp_path / "pairs.tsv", "en\tde", "a\tb")
    assert read_inputs(str(tmp_path / "with.tsv")) == Inputs(["a", "c"], ["b", "d"], ["1", "0"])
    assert read_inputs(str(tmp_path / "without.tsv")) == Inputs(["a", "c"], [], [])
    assert read_inputs(str(tmp_path / "lines.txt")) == Inputs(["a", "c"])
    assert read_inputs(f"translation:{tmp_path}/pairs.tsv:en-de") == Inputs(["a"], (), ["b"])
    assert read_inputs("mnist") is None
    with pytest.raises(HeadjaxError, match=r"expected a column of texts .*; it has en, de"):
        read_inputs(str(tmp_path / "pairs.tsv"))


def test_a_decoder_generates_instead():
    with pytest.raises(HeadjaxError, match="headjax generate"):
        predict(tiny.model(tiny.decoder_config()), Inputs(["a"]))
