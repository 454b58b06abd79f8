"""Predictions against the model's own forward pass, and two models on the same examples."""

import jax
import numpy as np
import pytest

import headjax
from headjax.evaluation.measures import Classes, LanguageModelling, Numbers
from headjax.evaluation.paired import compare
from headjax.evaluation.predictions import Inputs, predict, predict_images, read_inputs
from headjax.evaluation.structured import Spans
from tests import tiny
from tests.closeness import assert_close, close_to
from tests.data.images import write_mnist
from tests.data.squad import SHORT, long_paragraph, write_squad
from tests.data.vocabulary import WORDS, write_lines
from tests.hub.directories import CONFIGS, model_of
from tests.models.test_encoder_decoder import translation

TEXTS = [f"{WORDS[5]} {WORDS[6]}", WORDS[7], f"{WORDS[8]} {WORDS[9]} {WORDS[10]}"]


def test_classes_by_name_with_their_probabilities(bert):
    named = headjax.with_task(bert, headjax.tasks.Classification(classes=2, names=("bad", "good")))
    found = predict(named, Inputs(TEXTS, given=["x", "y", "z"]), batch_size=2)
    batch = headjax.text_batch(named.tokenizer, TEXTS)
    expected = np.asarray(jax.nn.softmax(named(batch).logits))
    for row, one in enumerate(found):
        assert (one["text"], one["given"]) == (TEXTS[row], "xyz"[row])
        assert_close(list(one["probabilities"].values()), expected[row], sums=tiny.SUMS)
        assert one["label"] == ("bad", "good")[int(expected[row].argmax())]
        assert one["probability"] == max(one["probabilities"].values())


def test_numbers(bert):
    model = headjax.with_task(bert, headjax.tasks.Regression())
    found = predict(model, Inputs(TEXTS, TEXTS))
    logits = np.asarray(model(headjax.text_batch(model.tokenizer, TEXTS, TEXTS)).logits)[:, 0]
    assert_close([one["number"] for one in found], logits, sums=tiny.SUMS)


def test_embeddings_are_means_and_pairs_have_cosines(bert):
    model = headjax.with_task(bert, headjax.tasks.NoTask())
    found = np.asarray([one["embedding"] for one in predict(model, Inputs(TEXTS), batch_size=2)])
    alone = np.asarray(model(headjax.text_batch(model.tokenizer, TEXTS[1:2])).hidden)[0, :3]  # [CLS] word [SEP]
    assert_close(found[1], alone.mean(axis=0), sums=tiny.SUMS)
    pairs = predict(model, Inputs(TEXTS[:2], TEXTS[1:]))
    cosine = found[0] @ found[1] / np.linalg.norm(found[0]) / np.linalg.norm(found[1])
    assert_close(pairs[0]["similarity"], cosine, sums=tiny.SUMS)


def test_answers_are_spans_of_the_context(bert):
    model = headjax.with_task(bert, headjax.tasks.Span())
    contexts = [" ".join(WORDS[5:9]), " ".join(WORDS[9:14])]
    found = predict(model, Inputs(TEXTS[:2], contexts))
    for one, context in zip(found, contexts, strict=True):
        assert one["answer"]
        assert one["answer"] in context
        assert np.isfinite(one["score"])
    with pytest.raises(headjax.HeadjaxError, match="question and context"):
        predict(model, Inputs(TEXTS))


def test_questions_of_a_file_have_the_answers_that_are_evaluated(bert, tmp_path):
    write_squad(tmp_path / "dev.json", long_paragraph(), SHORT)
    model = headjax.with_task(bert, headjax.tasks.Span())
    task = headjax.load_task(f"squad:{tmp_path / 'dev.json'}", model)
    assert task.name == f"squad:{tmp_path / 'dev.json'}"  # so that commands tell the examples of two files apart
    evaluated = headjax.measure_task(model, task)
    expected = task.measure.answers(evaluated.outcomes)
    inputs = read_inputs(f"squad:{tmp_path / 'dev.json'}")
    found = predict(model, inputs, batch_size=2)
    questions = list(dict.fromkeys(window.question for window in task.measure.windows))
    assert [one["text"] for one in found] == [question.text for question in questions]
    assert [one["answer"] for one in found] == [expected[number].text for number in range(len(questions))]
    assert all(one["given"] for one in found)
    assert [one["text"] for one in predict(model, inputs.first(1))] == [questions[0].text]


def test_similarities_are_those_that_are_evaluated(bert, tmp_path):
    rows = [(TEXTS[0], TEXTS[1], "1.5"), (TEXTS[1], TEXTS[2], "4.0")]
    path = write_lines(tmp_path / "pairs.tsv", "sentence1\tsentence2\tscore", *("\t".join(row) for row in rows))
    model = headjax.with_task(bert, headjax.tasks.NoTask())
    found = predict(model, read_inputs(str(path)))
    outcomes = headjax.measure_task(model, headjax.load_task(str(path), model)).outcomes
    assert_close([one["similarity"] for one in found], outcomes["prediction"], sums=tiny.SUMS)
    assert [one["given"] for one in found] == ["1.5", "4.0"]


def test_sources_are_cut_to_the_models_positions():
    config = translation(vocab_size=257, num_layers=1, positions="learned", max_length=8)
    model = tiny.model(config).replace(tokenizer=headjax.byte_tokenizer())
    long, cut, three = predict(model, Inputs(["abcdefghijkl", "abcdefg", "abc"]), beams=1)
    assert long["translation"] == cut["translation"]
    (asked,) = predict(model, Inputs(["abcdefg"]), length=4, beams=1)
    assert asked["translation"] == three["translation"]


def test_images(tmp_path):
    write_mnist(tmp_path)
    vit = model_of(CONFIGS["vit"] | {"num_channels": 1, "num_labels": 2})
    found = predict_images(vit, f"mnist:{tmp_path}", limit=3, batch_size=2)
    assert [one["example"] for one in found] == [0, 1, 2]
    assert all(one["given"] in ("0", "1") for one in found)


def test_files_with_and_without_labels(tmp_path):
    def columns(spec):
        return tuple(map(list, read_inputs(spec)[:4]))

    def read(name, *lines):
        return columns(str(write_lines(tmp_path / name, *lines)))

    found = read("with.tsv", "sentence1\tid\tsentence2\tlabel", "a\tx\tb\t1", "c\ty\td\t0")
    assert found == (["a", "c"], ["b", "d"], ["1", "0"], [{"id": "x"}, {"id": "y"}])
    assert read("without.tsv", "text", "a", "c") == (["a", "c"], [], [], [])
    found = read("nli.tsv", "premise\thypothesis\tclass", "a\tb\tc")
    assert found == (["a"], ["b"], ["c"], [])  # as they are evaluated
    assert read("lines.txt", "a", "", "c") == (["a", "c"], [], [], [])
    with pytest.raises(headjax.DataError, match=r"pairs\.tsv: .* en, de"):
        read("pairs.tsv", "en\tde", "a\tb")
    assert columns(f"translation:{tmp_path}/pairs.tsv:en-de") == (["a"], [], ["b"], [])
    assert read("null.jsonl", '{"text": "a", "label": null}') == (["a"], [], [""], [])
    with pytest.raises(headjax.HeadjaxError, match=r"^task: expected translation:PATH:SOURCE-TARGET"):
        read_inputs("translation:pairs.tsv")
    assert read_inputs("mnist") is None
    with pytest.raises(headjax.DataError, match=rf"^{tmp_path}/empty\.tsv: .*no"):
        read("empty.tsv", "text")


@pytest.fixture(scope="module")
def table(folder):
    rows = (f"{word} film\t{i % 2}" for i, word in enumerate(WORDS[5:13]))
    return str(write_lines(folder / "table.tsv", "sentence\tlabel", *rows))


def drawn_twice(bert, output, spec):
    """Two models whose outputs differ by their seed, and the task of each."""
    models = tuple(headjax.with_task(bert, output, seed=seed) for seed in (0, 1))
    return models, tuple(headjax.load_task(spec, one) for one in models)


def test_classes_agree_by_their_share(bert, table):
    (first, second), tasks = drawn_twice(bert, headjax.tasks.Classification(classes=2), table)
    found = compare((first, second), tasks)
    predictions = [headjax.measure_task(one, tasks[0]).outcomes["prediction"] for one in (first, second)]
    assert found.agreement == np.mean(predictions[0] == predictions[1])
    assert found.test == "McNemar's exact test"
    assert found.second.metrics == headjax.evaluate_task(second, tasks[0])
    same = compare((first, first), (tasks[0], tasks[0]))
    assert (same.agreement, same.significance.p_value) == (1.0, 1.0)


def test_numbers_and_similarities_agree_by_their_difference(bert, table, folder):
    (first, second), tasks = drawn_twice(bert, headjax.tasks.Regression(), table)
    found = compare((first, second), tasks)
    a, b = (headjax.measure_task(one, tasks[0]).outcomes["prediction"] for one in (first, second))
    assert found.agreement == np.abs(a - b).mean() > 0
    assert found.measure == "mean absolute difference of predictions"
    rows = (f"{x} film\tgood {y}\t{i}.5" for i, (x, y) in enumerate(zip(WORDS[5:9], WORDS[9:13], strict=True)))
    path = write_lines(folder / "pairs.tsv", "sentence1\tsentence2\tscore", *rows)
    embedding = headjax.with_task(bert, headjax.tasks.NoTask())
    task = headjax.load_task(str(path), embedding, split="all")
    same = compare((embedding, embedding), (task, task))
    assert (same.agreement, same.measure) == (0.0, found.measure)
    assert set(same.first.metrics) == {"loss", "spearman", "pearson"}


def test_answers_agree_by_their_share(bert, folder):
    write_squad(folder / "dev.json", long_paragraph(), SHORT)
    models, tasks = drawn_twice(bert, headjax.tasks.Span(), f"squad:{folder / 'dev.json'}")
    same = compare((models[0], models[0]), (tasks[0], tasks[0]))
    assert (same.agreement, same.measure) == (1.0, "share of questions with equal answers")
    found = compare(models, tasks)
    assert 0.0 <= found.agreement <= 1.0
    assert found.test


def test_tokens_agree_over_those_that_both_models_have(tmp_path):
    """A vocabulary filled up to a round number has the same text."""
    (tmp_path / "text.txt").write_text("some words of it " * 20)

    def decoder(tokens):
        config = tiny.decoder_config(vocab_size=tokens, max_length=16)
        return tiny.model(config).replace(tokenizer=headjax.byte_tokenizer())

    full = decoder(264)
    table = full.params["embeddings"] | {"token": full.params["embeddings"]["token"][:257]}
    cut = decoder(257).replace(params=full.params | {"embeddings": table})
    tasks = tuple(headjax.load_task(str(tmp_path / "text.txt"), one, split="all") for one in (full, cut))
    found = compare((full, cut), tasks)
    assert found.agreement == close_to(0.0, sums=tiny.SUMS)
    assert found.measure == "mean KL(A, B) of the predicted tokens among the 257 tokens that both have, nats"


def test_every_measure_says_its_kind():
    assert [one.kind for one in (Classes(), LanguageModelling(), Spans())] == ["binary", "sum", "graded"]
    assert [one.kind for one in (Classes(primary_metric="f1", chosen=("f1",)), Numbers())] == ["corpus", "corpus"]


def test_texts_that_are_empty_are_said_with_their_examples(tmp_path):
    path = write_lines(tmp_path / "a.csv", "id,text", "1,good", '2,""', "3,bad", '4," "')
    with pytest.warns(UserWarning, match=r"a\.csv: no text in the column text in example 2, 4, counted from 1"):
        inputs = read_inputs(str(path))
    assert [other["id"] for other in inputs.others] == ["1", "2", "3", "4"]


def test_columns_that_are_named_as_a_prediction_are_kept_beside_it(tmp_path, bert):
    model = headjax.with_task(bert, headjax.tasks.MultiLabel(classes=2, names=("bad", "good")))
    path = write_lines(tmp_path / "a.csv", "id,sentence,text,labels", "1,good,long,x", "2,bad,short,y")
    found = predict(model, read_inputs(str(path)))
    assert [one["text"] for one in found] == ["good", "bad"]
    assert [(one["id"], one["table.text"]) for one in found] == [("1", "long"), ("2", "short")]
    assert all(isinstance(one["labels"], list) for one in found)


def test_several_labels_have_their_probabilities(bert):
    model = headjax.with_task(bert, headjax.tasks.MultiLabel(classes=2, names=("bad", "good")))
    for one in predict(model, Inputs(TEXTS)):
        assert one["labels"] == [name for name, chance in one["probabilities"].items() if chance > 0.5]
