"""A task that the package does not know: a form, a kind of data and a specification, without a change elsewhere."""

import dataclasses
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from headjax.core.serialize import from_data, kind, to_data
from headjax.data import tasks
from headjax.data.forms import Encoded, SequenceForm
from headjax.data.forms.form import text, tokenizer_of
from headjax.data.loading import load_rows
from headjax.data.local_files import local_rows
from headjax.data.prepare import prepare
from headjax.data.prepared import PreparedData
from headjax.data.stream import evaluation_batches, train_iterator
from headjax.data.task import DataConfig, MeasureSpec
from headjax.data.task_spec import TaskSpec
from headjax.evaluation.measures import Classes
from headjax.evaluation.task import measure_of
from headjax.tokenizers.learned import byte_tokenizer
from tests.data.vocabulary import write_lines


@kind("test_parities")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ParityForm(SequenceForm):
    """`text`, and whether it has an even or an odd number of words."""

    fields: ClassVar = {"text": "text"}
    columns: ClassVar = ("input_ids",)

    length: int = 32

    @property
    def limit(self):
        return self.length

    @property
    def label_names(self):
        return ("even", "odd")

    def encode(self, tokenizer, rows, split, seed):
        texts = [text(row, "text") for row in rows]
        records = [
            {"input_ids": ids[: self.length], "labels": np.asarray([len(one.split()) % 2], np.int32)}
            for one, ids in zip(texts, tokenizer_of(tokenizer).encode(texts), strict=True)
        ]
        return Encoded(records, {"tokens": sum(map(self.tokens, records))}, self.fingerprint(records))

    def measured(self, metrics, counts, held):
        return MeasureSpec("classes", {"names": self.label_names, "chosen": tuple(metrics) or ("accuracy",)})


SPEC = TaskSpec(name="parity", form=ParityForm(), local=local_rows, vocabulary="bpe", metrics=("accuracy", "f1"))


@kind("test_parity_file")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ParityFile(DataConfig):
    """Tables with a column `text`; some rows are held out."""

    path: str

    def load(self, tokenizer=None):
        rows = {split: [*source.rows()] for split, source in local_rows(SPEC, [Path(self.path)]).items()}
        return load_rows(SPEC.form, rows, tokenizer or byte_tokenizer(), {"text": self.path})


@pytest.fixture
def file(tmp_path):
    words = "one two three four five six".split()  # noqa: SIM905
    lines = [f"{' '.join(words[: 1 + i % 6])} of {i}" for i in range(120)]
    return write_lines(tmp_path / "words.tsv", "text", *lines)


def test_memory_and_shards_give_the_same_examples(file, tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "TASKS", {**tasks.TASKS, SPEC.name: SPEC})
    config = from_data(DataConfig, to_data(ParityFile(path=str(file))))
    memory = config.load()
    assert 100 < len(memory.train) < len(memory.train) + len(memory.validation) == 120
    prepare(SPEC.name, SPEC.form, SPEC.local(SPEC, [file]), byte_tokenizer(), tmp_path / "shards", shard_bytes=300)
    stored = PreparedData(task="parity", path=str(tmp_path / "shards")).load()
    for one, two in zip(
        evaluation_batches(memory.validation, 4), evaluation_batches(stored.validation, 4), strict=True
    ):
        assert one.keys() == two.keys() == {"input_ids", "attention_mask", "labels"}
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])
    first, second = (next(train_iterator(data.train, 8, seed=3)) for data in (memory, stored))
    np.testing.assert_array_equal(first["input_ids"], second["input_ids"])
    assert memory.info["train"] == stored.info["train"]
    assert memory.info["labels"] == ["even", "odd"]
    assert measure_of(memory) == Classes(names=("even", "odd"))
    assert measure_of(stored) == Classes(names=("even", "odd"), chosen=("accuracy", "f1"))
