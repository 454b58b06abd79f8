"""Heads are chosen on other examples than metrics are taken on, and both are the same on every machine."""

import dataclasses
import json

import numpy as np
import pytest

import headjax
from headjax.data.examples import Padded, sequences, token_blocks
from headjax.data.forms.questions import Question, QuestionWindows, Window
from headjax.evaluation.measures import Classes, LanguageModelling
from headjax.evaluation.specs import RULE, describe, in_words, joined, selection_of
from headjax.evaluation.structured import Spans


def rows(ids, **columns) -> Padded:
    """Examples of these tokens; the label of each is its number."""
    arrays = [np.asarray(tokens, np.int32) for tokens in ids]
    return sequences({"input_ids": arrays, **columns}, {"labels": np.arange(len(ids))}, padding_id=99)


def labels(task: headjax.Task, limit: int = 0) -> list[int]:
    """The labels of the examples that a task's batches give."""
    return [int(label) for batch in task.batches(4, limit=limit) for label in batch["labels"] if label != -100]


GOLDEN = [11, 6, 13, 9, 0, 3, 8, 7, 5, 12]
"""The labels of the half of `SINGLE` to choose on: what every machine has to find."""

SINGLE = headjax.Task(
    "table.tsv", headjax.data.TaskData(None, (), rows([[i, i + 1, 7] for i in range(20)]), {}), Classes()
)
BOTH = dataclasses.replace(SINGLE, data=SINGLE.data._replace(train=rows([[i] * (1 + i % 3) for i in range(30)])))


def test_training_examples_are_drawn_at_random_and_the_others_are_left_as_they_are():
    selection, evaluation = headjax.split_task(BOTH)
    assert evaluation is BOTH
    assert (selection.split, evaluation.split) == ("train", "validation")
    assert sorted(labels(selection)) == list(range(30))
    assert labels(selection, limit=8) == labels(selection)[:8] == labels(selection_of(BOTH), limit=8)
    assert labels(selection, limit=8) != sorted(labels(selection, limit=8))
    assert labels(evaluation) == list(range(20))
    assert describe(selection, 8) == {"task": "table.tsv", "split": "train", "examples": 8}
    assert describe(evaluation) == {"task": "table.tsv", "split": "validation", "examples": 20}


def test_several_tasks_are_one_with_equal_shares_as_far_as_they_have_examples():
    few, many, longer = (
        dataclasses.replace(SINGLE, name=name, data=SINGLE.data._replace(validation=rows(ids)))
        for name, ids in {"few": [[1] * 3] * 3, "many": [[2] * 3] * 40, "longer": [[3] * 9] * 40}.items()
    )
    found = joined([many, few, longer], 16)
    firsts = [int(row[0]) for batch in found.batches(4) for row in batch["input_ids"]]
    assert [firsts.count(first) for first in (1, 2, 3)] == [3, 7, 6]
    assert (found.name, found.split, found.count()) == ("many (7), few (3), longer (6)", "all", 16)
    assert len(found.sample(16, 4)) == 4
    assert joined([many, few, longer]).count() == 83
    assert joined([many], 16) is many


def test_one_split_is_divided_in_disjoint_halves_that_are_the_same_everywhere():
    selection, evaluation = headjax.split_task(SINGLE)
    chosen, judged = labels(selection), labels(evaluation)
    assert sorted(chosen + judged) == list(range(20))
    assert len(chosen) == len(judged) == 10
    assert chosen == GOLDEN
    assert judged == sorted(judged)
    assert describe(selection) == {"task": "table.tsv", "split": "selection half", "examples": 10, "rule": RULE}
    assert describe(evaluation, 3) == {"task": "table.tsv", "split": "evaluation half", "examples": 3, "rule": RULE}
    # Whoever trains on the task may not see the examples to judge by either.
    assert {int(batch["labels"][0]) for batch in evaluation.sample(10, 1)} == set(chosen)


def test_what_an_example_is_padded_to_and_its_label_do_not_move_it():
    own = SINGLE.data.validation
    ids = [own.records[index]["input_ids"] for index in range(20)]
    longer = dataclasses.replace(sequences({"input_ids": ids}, {"labels": np.arange(20)[::-1]}), length=32)
    other = dataclasses.replace(SINGLE, data=SINGLE.data._replace(validation=longer))
    assert [19 - label for label in labels(headjax.split_task(other).selection)] == GOLDEN


def test_equal_examples_and_pairs_of_one_text_stay_together():
    pairs = [[1 + i % 5, 2, i] for i in range(20)]
    types = [np.asarray([0, 0, 1], np.int32)] * 20
    task = dataclasses.replace(SINGLE, data=SINGLE.data._replace(validation=rows(pairs, token_type_ids=types)))
    selection, evaluation = headjax.split_task(task)
    firsts = [{label % 5 for label in labels(part)} for part in (selection, evaluation)]
    assert not firsts[0] & firsts[1]
    assert firsts[0] | firsts[1] == set(range(5))
    assert len(labels(selection)) == 12
    same = dataclasses.replace(SINGLE, data=SINGLE.data._replace(validation=rows([[3, 4]] * 6)))
    with pytest.raises(headjax.DataError, match=r"^table\.tsv: .*--calibration"):
        headjax.split_task(same)


def test_blocks_of_text_are_divided_too():
    task = headjax.Task(
        "text", headjax.data.TaskData(None, (), token_blocks(np.arange(40), 4), {}), LanguageModelling()
    )
    parts = [
        {int(row[0]) for batch in part.batches(1) for row in batch["input_ids"]} for part in headjax.split_task(task)
    ]
    assert parts[0] | parts[1] == set(range(0, 40, 4))
    assert not parts[0] & parts[1]


def test_other_examples_may_be_named():
    selection, evaluation = headjax.split_task(SINGLE, "validation")
    assert labels(selection) == labels(evaluation) == list(range(20))
    assert any("flatters" in note for note in in_words(describe(selection), describe(evaluation)))
    other = dataclasses.replace(BOTH, name="other")
    selection, evaluation = headjax.split_task(SINGLE, other)
    assert evaluation is SINGLE
    assert describe(selection) == {"task": "other", "split": "train", "examples": 30}
    assert describe(headjax.split_task(BOTH, dataclasses.replace(SINGLE, name="own"))[0])["split"] == "all"
    with pytest.raises(headjax.HeadjaxError, match=r"^select: .*'test'"):
        headjax.split_task(BOTH, "test")


def test_training_examples_may_be_another_tasks():
    train = dataclasses.replace(SINGLE, name="train")
    selection, evaluation = headjax.split_task(BOTH, train=train)
    described = {"task": "train", "split": "all", "examples": 20}
    assert describe(selection) == described
    assert labels(evaluation) == list(range(20))
    assert {int(batch["labels"][0]) for batch in evaluation.sample(99, 1)} == set(range(20))
    # A task with one split is not divided then.
    assert describe(headjax.split_task(SINGLE, train=BOTH).evaluation)["split"] == "all"
    assert describe(headjax.split_task(SINGLE, "validation", train=BOTH).selection)["examples"] == 20


def test_samples_are_drawn_by_seed():
    selection = headjax.split_task(BOTH).selection
    drawn = {tuple(int(label) for label in selection.sample(4, 4, seed=seed)[0]["labels"]) for seed in range(4)}
    assert len(drawn) == 4


def test_measures_follow_the_examples():
    ratios = {"words_per_token": 0.5, "bytes_per_token": 3.0, "tokens": 9}
    found = LanguageModelling(words_per_token=0.9, bytes_per_token=4.0).on((), ratios)
    assert found == LanguageModelling(words_per_token=0.5, bytes_per_token=3.0)
    questions = tuple(Question(name, "which?", text, ("a",), 0) for name, text in (("q", "a b"), ("r", "a c")))
    windows = tuple(Window(number, questions[number], np.zeros((4, 2), np.int64)) for number in (0, 0, 1))
    records = [
        {"offsets": window.offsets, "question": np.frombuffer(json.dumps(asked).encode() if asked else b"", np.uint8)}
        for window, asked in zip(windows, (questions[0], None, questions[1]), strict=True)
    ]
    train = QuestionWindows(records, np.full(3, 4), 8, lambda record, length: {}, all_records=records)
    spans = Spans()
    assert spans.on(train, {}).windows[-1].question == questions[1]
    together = {spans.on(train, {}).together({"window": np.int32(number)}) for number in (0, 1)}
    assert together == {"a b"}
