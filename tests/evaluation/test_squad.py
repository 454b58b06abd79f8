from __future__ import annotations

import json

import pytest

from headjax.core.errors import DataError
from headjax.evaluation.spans import answer_f1, exact_match, normalize_answer, squad_metrics


@pytest.mark.parametrize(
    "text, normal",
    [
        ("The  Cat.", "cat"),
        ("a U.S. theme", "us theme"),
        ("An\tapple, the pear", "apple pear"),
        ("the-", ""),
        ("Ärger – «das»", "ärger – «das»"),  # noqa: RUF001
    ],
)
def test_normalisation(text, normal):
    assert normalize_answer(text) == normal


def test_overlap_counts_repeated_words():
    assert answer_f1("new york new york", ["new york city"]) == pytest.approx(2 * 2 / (4 + 3))
    assert answer_f1("york", ["paris", "New York"]) == pytest.approx(2 * 1 / (1 + 2))
    assert answer_f1("", ["paris"]) == 0.0
    assert exact_match("the Paris!", ["paris", "x"]) == 1.0
    assert squad_metrics({"a": "x", "other": "y"}, {"a": ["x"], "b": ["y"]}) == {"exact_match": 0.5, "f1": 0.5}
    with pytest.raises(DataError, match="no questions"):
        squad_metrics({}, {})


@pytest.mark.parametrize(
    "name, exact, f1",
    [
        ("bert_ensemble", 86.206, 92.196),
        ("rnetplus_ensemble", 82.469, 88.478),
        ("logreg_baseline", 40.142, 50.982),
    ],
)
def test_published_predictions_score_what_the_leaderboard_says(data_dir, name, exact, f1):
    articles = json.loads((data_dir / "squad" / "dev-v1.1.from-explorer.json").read_text())["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    answers = {qa["id"]: [answer["text"] for answer in qa["answers"]] for p in paragraphs for qa in p["qas"]}
    predictions = json.loads((data_dir / "squad" / f"pred_{name}.json").read_text())
    scores = squad_metrics(predictions, answers)
    assert round(100 * scores["exact_match"], 3) == exact
    assert round(100 * scores["f1"], 3) == f1
