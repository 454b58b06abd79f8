"""SQuAD v1.1 (Rajpurkar et al. 2016)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from headjax.core.errors import DataError
from headjax.data.prepared.questions import QuestionForm
from headjax.data.prepared.rows import RowSource, TaskRow
from headjax.data.question_answering import read_questions
from headjax.data.tasks.local import TFRECORD, local_rows, split_files
from headjax.data.tasks.spec import Rows, TaskSpec, TfdsSource


def local_squad(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Files in SQuAD's format, or TFRecords of the fields.

    Splits go by names as everywhere, but where no file is for validation all are that are not called `train`.
    """
    try:
        files = split_files(paths, (".json", ".json.gz"))
    except DataError:
        split_files(paths, (TFRECORD,))
        return local_rows(spec, paths)
    if not files["validation"]:
        train = [file for file in files["train"] if "train" in file.name]
        files = {"train": train, "validation": [file for file in files["train"] if file not in train]}
    if not files["validation"]:
        raise DataError(f"{paths[0]}: no file to evaluate on (dev-v1.1.json)")
    return {split: RowSource.of([*_questions(found)]) for split, found in files.items() if found}


def _questions(files: Sequence[Path]) -> Iterator[TaskRow]:
    for file in files:
        for question in read_questions(file):
            yield TaskRow(f"{file}: question {question.id}", _fields(question._asdict()))


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
