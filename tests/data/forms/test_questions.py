from __future__ import annotations

import pytest

from headjax.core.errors import DataError
from headjax.data.forms import (
    QuestionForm,
)
from headjax.data.forms.questions import QuestionWindows
from headjax.data.rows import Row
from tests.data.forms.making import examples, train


def test_questions_keep_what_their_answers_are_read_from(wordpiece):
    context = "the film was not very dull it was fun , a good film"
    rows = [
        Row(
            "q",
            {
                "id": f"q{i}",
                "question": "was it fun",
                "context": context,
                "answers": ("fun",),
                "start": context.index("fun"),
            },
        )
        for i in range(2)
    ]
    form = QuestionForm(length=80, stride=2)
    records = form.encode(wordpiece, rows, "validation", (0,)).records
    held = examples(form, wordpiece, records, "validation")
    assert isinstance(held, QuestionWindows)
    assert [question.id for question in held.windows.questions] == ["q0", "q1"]
    start, end = int(held[0]["start_positions"]), int(held[0]["end_positions"])
    assert held.windows.answer(0, start, end) == "fun"
    assert held[1]["window"] == 1
    source = train(form, wordpiece, rows)
    assert source[0]["start_positions"] == start
    bad = [Row("file: question 3", dict(rows[0].values) | {"start": 2})]
    with pytest.raises(DataError, match=r"^file: question 3: 'fun' does not stand at character 2"):
        form.encode(wordpiece, bad, "train", (0,))
