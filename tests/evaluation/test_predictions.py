"""Predictions against the model's own forward pass."""

import dataclasses

import jax
import numpy as np
import pytest

import headjax
from headjax.core.errors import DataError, HeadjaxError
from headjax.evaluation.predictions import Inputs, predict, predict_task, read_inputs
from headjax.evaluation.specs import load_task
from headjax.evaluation.task import measure_task
from headjax.models.embeddings import Embeddings, Learned
from headjax.models.tasks import Classification, NoTask, Regression, Span
from headjax.tokenizers.learned import byte_tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests import tiny
from tests.closeness import assert_close
from tests.data.test_image_data import write_mnist
from tests.data.test_text_data import SHORT, long_paragraph, write_squad
from tests.data.vocabulary import WORDS, write_lines, write_vocabulary
from tests.hub.directories import BERT, CONFIGS, model_of
from tests.models.test_encoder_decoder import translation

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


def test_questions_of_a_file_have_the_answers_that_are_evaluated(bert, tmp_path):
    write_squad(tmp_path / "dev.json", long_paragraph(), SHORT)
    model = headjax.with_task(bert, Span())
    task = load_task(f"squad:{tmp_path / 'dev.json'}", model)
    assert task.name == f"squad:{tmp_path / 'dev.json'}"  # so that commands tell the examples of two files apart
    evaluated = measure_task(model, task)
    expected = task.measure.answers(evaluated.outcomes)
    assert read_inputs(f"squad:{tmp_path / 'dev.json'}") is None  # windows, not a table of texts
    found = predict_task(model, f"squad:{tmp_path / 'dev.json'}", batch_size=2)
    questions = task.measure.windows.questions
    assert [one["text"] for one in found] == [question.text for question in questions]
    assert [one["answer"] for one in found] == [expected[number] for number in range(len(questions))]
    assert all(one["given"] for one in found)
    assert predict_task(model, f"squad:{tmp_path / 'dev.json'}", limit=1)[0]["text"] == questions[0].text


def test_similarities_are_those_that_are_evaluated(bert, tmp_path):
    rows = [(TEXTS[0], TEXTS[1], "1.5"), (TEXTS[1], TEXTS[2], "4.0")]
    path = write_lines(tmp_path / "pairs.tsv", "sentence1\tsentence2\tscore", *("\t".join(row) for row in rows))
    model = headjax.with_task(bert, NoTask())
    found = predict(model, read_inputs(str(path)))
    outcomes = measure_task(model, load_task(str(path), model)).outcomes
    assert_close([one["similarity"] for one in found], outcomes["prediction"], sums=tiny.SUMS)
    assert [one["given"] for one in found] == ["1.5", "4.0"]


def test_sources_are_cut_to_the_models_positions():
    config = translation(vocab_size=257, num_layers=1)
    short = dataclasses.replace(config, embeddings=Embeddings(vocab_size=257, positions=Learned(8)))
    model = tiny.model(short).replace(tokenizer=byte_tokenizer())
    long, cut = predict(model, Inputs(["abcdefghijkl", "abcdefg"]), beams=1)
    assert long["translation"] == cut["translation"]
    assert (
        predict(model, Inputs(["abcdefg"]), length=4, beams=1)[0] | {"text": "abc"}
        == (predict(model, Inputs(["abc"]), beams=1)[0])
    )


def test_images(tmp_path):
    write_mnist(tmp_path)
    vit = model_of(CONFIGS["vit"] | {"num_channels": 1, "num_labels": 2})
    found = predict_task(vit, f"mnist:{tmp_path}", limit=3, batch_size=2)
    assert [one["example"] for one in found] == [0, 1, 2]
    assert all(one["given"] in ("0", "1") for one in found)


def test_files_with_and_without_labels(tmp_path):
    def read(name, *lines):
        return read_inputs(str(write_lines(tmp_path / name, *lines)))

    assert read("with.tsv", "sentence1\tsentence2\tlabel", "a\tb\t1", "c\td\t0") == (["a", "c"], ["b", "d"], ["1", "0"])
    assert read("without.tsv", "text", "a", "c") == (["a", "c"], [], [])
    assert read("lines.txt", "a", "", "c") == Inputs(["a", "c"])
    with pytest.raises(DataError, match=r"pairs\.tsv: .* en, de"):
        read("pairs.tsv", "en\tde", "a\tb")
    assert read_inputs(f"translation:{tmp_path}/pairs.tsv:en-de") == (["a"], (), ["b"])
    assert read_inputs("mnist") is None
    with pytest.raises(DataError, match=rf"^{tmp_path}/empty\.tsv: .*no"):
        read("empty.tsv", "text")


def test_a_decoder_generates_instead():
    with pytest.raises(HeadjaxError, match="headjax generate"):
        predict(tiny.model(tiny.decoder_config()), Inputs(["a"]))
