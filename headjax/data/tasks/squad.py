"""SQuAD v1.1 (Rajpurkar et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headjax.data.prepared.form import Split
from headjax.data.prepared.questions import QuestionForm
from headjax.data.prepared.rows import RowSource, TaskRow
from headjax.data.question_answering import read_questions
from headjax.data.tasks.local import TFRECORD, local_rows, split_files
from headjax.data.tasks.spec import Rows, TaskSpec, TfdsSource
from headjax.errors import DataError


def local_squad(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Files in SQuAD's format; those that are not called `train` are for validation. Or TFRecords of the fields."""
    try:
        files = split_files(paths, (".json", ".json.gz"))
    except DataError:
        split_files(paths, (TFRECORD,))
        return local_rows(spec, paths)
    called = {split: [file for file in found if "train" in file.name] for split, found in files.items()}
    named: dict[Split, list[Path]] = {
        "train": called["train"],
        "validation": [file for split, found in files.items() for file in found if file not in called[split]],
    }
    rows: dict[Split, list[TaskRow]] = {
        split: [
            TaskRow(f"{file}: question {question.id}", _fields(question._asdict()))
            for file in found
            for question in read_questions(file)
        ]
        for split, found in named.items()
    }
    if not rows["validation"]:
        raise DataError(f"{paths[0]}: no file to evaluate on (dev-v1.1.json)")
    return {split: RowSource.of(found) for split, found in rows.items() if found}


def _fields(question: dict[str, object]) -> dict[str, object]:
    return {"question": question.pop("text"), **question}


TASKS = (
    TaskSpec(
        name="squad",
        form=QuestionForm(),
        local=local_squad,
        sources=(
            TfdsSource(
                "squad/v1.1:3.0.0",
                {"train": "train", "validation": "validation"},
                {
                    "id": "id",
                    "question": "question",
                    "context": "context",
                    "answers": "answers/text",
                    "start": "answers/answer_start/0",
                },
            ),
        ),
        files="SQuAD's JSON",
    ),
)
