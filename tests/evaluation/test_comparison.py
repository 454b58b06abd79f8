"""Comparisons of two models on the same examples."""

from __future__ import annotations

import numpy as np
import pytest

import headjax
from headjax.evaluation.comparison import compare
from headjax.evaluation.task import evaluate_task
from headjax.models.tasks import Classification, Regression
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests.commands.test_every_family import BERT
from tests.data.vocabulary import WORDS, write_lines, write_vocabulary
from tests.hub.directories import model_of


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    write_lines(folder / "table.tsv", "sentence\tlabel", *(f"{w} film\t{i % 2}" for i, w in enumerate(WORDS[5:13])))
    fields = BERT | {"vocab_size": len(WORDS), "max_position_embeddings": 32, "num_labels": 2}
    return folder, model_of(fields).replace(tokenizer=wordpiece_tokenizer(write_vocabulary(folder)))


def test_classes_agree_by_their_share(bert):
    folder, model = bert
    first, second = (headjax.with_task(model, Classification(classes=2), seed=seed) for seed in (0, 1))
    tasks = tuple(headjax.load_task(str(folder / "table.tsv"), one) for one in (first, second))
    found = compare((first, second), tasks)
    predictions = [headjax.measure_task(one, tasks[0]).outcomes["prediction"] for one in (first, second)]
    assert found.agreement == np.mean(predictions[0] == predictions[1])
    assert found.test == "McNemar's exact test"
    assert found.second.metrics == evaluate_task(second, tasks[0])
    same = compare((first, first), (tasks[0], tasks[0]))
    assert (same.agreement, same.significance.p_value) == (1.0, 1.0)


def test_numbers_agree_by_their_difference(bert):
    folder, model = bert
    first, second = (headjax.with_task(model, Regression(), seed=seed) for seed in (0, 1))
    tasks = tuple(headjax.load_task(str(folder / "table.tsv"), one) for one in (first, second))
    found = compare((first, second), tasks)
    a, b = (headjax.measure_task(one, tasks[0]).outcomes["prediction"] for one in (first, second))
    assert found.agreement == np.abs(a - b).mean() > 0
    assert found.measure == "mean absolute difference of predictions"
