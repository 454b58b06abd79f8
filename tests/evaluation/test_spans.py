import dataclasses
import json

import numpy as np
import pytest

from headjax.core.errors import DataError, HeadjaxError
from headjax.evaluation.spans import answer_f1, best_span, exact_match, normalize_answer, squad_metrics
from headjax.evaluation.specs import load_task
from headjax.evaluation.task import measure_task
from headjax.models.config import Output
from headjax.models.tasks import NoTask, Span
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests.closeness import close_to
from tests.data.test_text_data import SHORT, long_paragraph, write_squad
from tests.data.vocabulary import write_vocabulary
from tests.tiny import text_encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spans")
    write_squad(folder / "dev-v1.1.json", long_paragraph(), SHORT)
    return folder


@pytest.fixture(scope="module")
def reader(folder):
    return text_encoder(Span(), wordpiece_tokenizer(write_vocabulary(folder)), max_length=100)


def test_best_span_by_trying_all():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(3, 40, 2)).astype(np.float32)
    inside = np.zeros((3, 40), np.int32)
    inside[:, 5:38] = 1
    logits[0, 37, 0] = logits[0, 6, 1] = 50.0  # an end before its start
    logits[1, 5, 0] = logits[1, 36, 1] = 50.0  # 32 tokens
    scores, starts, ends = (np.asarray(array) for array in best_span(Output(logits, logits), {"context_mask": inside}))
    for row in range(3):
        spans = {
            (start, end): logits[row, start, 0] + logits[row, end, 1]
            for start in range(5, 38)
            for end in range(start, min(start + 30, 38))
        }
        best = max(spans, key=spans.__getitem__)
        assert (starts[row], ends[row]) == best
        assert scores[row] == close_to(spans[best], sums=2)


def test_a_question_is_answered_by_its_best_window(reader, folder):
    task = load_task(f"squad:{folder}", reader)
    assert task.data.validation[0]["input_ids"].shape == (100,)  # as many as the model has positions
    found = measure_task(reader, task, batch_size=2)
    assert found.examples == len(task.data.validation.windows.windows)
    answers = task.measure.answers(found.outcomes)
    assert list(answers) == [0, 1, 2]
    windows = [window.question for window in task.data.validation.windows.windows]
    best = int(np.argmax(np.where(np.equal(windows, 0), found.outcomes["score"], -np.inf)))
    start, end = (int(found.outcomes[name][best]) for name in ("start", "end"))
    assert answers[0] == task.data.validation.windows.answer(best, start, end)
    gold = [question.answers for question in task.data.validation.windows.questions]
    values = [answer_f1(answers[number], gold[number]) for number in range(3)]
    assert found.metrics["f1"] == pytest.approx(np.mean(values))
    np.testing.assert_allclose(task.measure.values(found.outcomes), values)
    assert (task.headline, task.higher_is_better) == ("f1", True)


def test_only_for_models_with_spans(reader, folder):
    plain = reader.replace(config=dataclasses.replace(reader.config, output=NoTask()))
    with pytest.raises(HeadjaxError, match=r"^task: .* a span; .* no_task"):
        load_task(f"squad:{folder}", plain)
    with pytest.raises(HeadjaxError, match=r"missing: .*squad"):
        load_task(f"squad:{folder}/missing", reader)


def test_normalisation():
    for text, normal in {
        "The  Cat.": "cat",
        "a U.S. theme": "us theme",
        "An\tapple, the pear": "apple pear",
        "the-": "",
        "Ärger – «das»": "ärger – «das»",  # noqa: RUF001
    }.items():
        assert normalize_answer(text) == normal


def test_overlap_counts_repeated_words():
    assert answer_f1("new york new york", ["new york city"]) == pytest.approx(2 * 2 / (4 + 3))
    assert answer_f1("york", ["paris", "New York"]) == pytest.approx(2 * 1 / (1 + 2))
    assert answer_f1("", ["paris"]) == 0.0
    assert exact_match("the Paris!", ["paris", "x"]) == 1.0
    assert squad_metrics({"a": "x", "other": "y"}, {"a": ["x"], "b": ["y"]}) == {"exact_match": 0.5, "f1": 0.5}
    with pytest.raises(DataError, match="no questions"):
        squad_metrics({}, {})


LEADERBOARD = {
    "bert_ensemble": (86.206, 92.196),
    "rnetplus_ensemble": (82.469, 88.478),
    "logreg_baseline": (40.142, 50.982),
}


@pytest.mark.parametrize("name", LEADERBOARD)
def test_published_predictions_score_what_the_leaderboard_says(data_dir, name):
    articles = json.loads((data_dir / "squad" / "dev-v1.1.from-explorer.json").read_text())["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    answers = {qa["id"]: [answer["text"] for answer in qa["answers"]] for p in paragraphs for qa in p["qas"]}
    predictions = json.loads((data_dir / "squad" / f"pred_{name}.json").read_text())
    scores = squad_metrics(predictions, answers)
    assert tuple(round(100 * scores[metric], 3) for metric in ("exact_match", "f1")) == LEADERBOARD[name]
