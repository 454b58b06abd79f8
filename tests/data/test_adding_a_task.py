"""A task that the package does not know: a form and a record of the registry, without a change elsewhere."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest

import headjax
from headjax.core.serialize import from_data, kind, to_data
from headjax.data.examples import MeasureSpec
from headjax.data.forms import Encoded, SequenceForm
from headjax.data.forms.form import text
from headjax.data.store import prepare
from headjax.data.stream import train_iterator
from headjax.evaluation.measures import Classes
from headjax.evaluation.task import measure_of
from tests.data.vocabulary import write_lines


@kind("test_parities")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ParityForm(SequenceForm):
    """`text`, and whether it has an even or an odd number of words."""

    fields: ClassVar = {"text": "text"}
    columns: ClassVar = ("input_ids",)

    length: int = 32

    @property
    def label_names(self):
        return ("even", "odd")

    def encode(self, tokenizer, rows, split, seed):
        texts = [text(row, "text") for row in rows]
        records = [
            {"input_ids": ids[: self.length], "labels": np.asarray([len(one.split()) % 2], np.int32)}
            for one, ids in zip(texts, tokenizer.encode(texts), strict=True)
        ]
        return Encoded(records, {"tokens": sum(map(self.tokens, records))})

    def measured(self, metrics, counts, held):
        return MeasureSpec("classes", {"names": self.label_names, "chosen": tuple(metrics) or ("accuracy",)})


SPEC = headjax.data.TaskSpec(name="parity", form=ParityForm(), vocabulary="bpe", metrics=("accuracy", "f1"))


@pytest.fixture
def file(tmp_path):
    words = "one two three four five six".split()  # noqa: SIM905
    lines = [f"{' '.join(words[: 1 + i % 6])} of {i}" for i in range(120)]
    return write_lines(tmp_path / "words.tsv", "text", *lines)


def test_memory_and_shards_give_the_same_examples(file, tmp_path, monkeypatch):
    monkeypatch.setitem(headjax.data.TASKS, SPEC.name, SPEC)
    config = from_data(
        headjax.data.DataConfig, to_data(headjax.data.DataConfig(task=f"parity:{file}", tokenizer="bytes"))
    )
    memory = config.load()
    assert 100 < len(memory.train) < len(memory.train) + len(memory.validation) == 120
    prepare(SPEC.name, SPEC.form, config.open().rows, headjax.byte_tokenizer(), tmp_path / "shards", shard_bytes=300)
    stored = headjax.data.DataConfig(task=f"parity:{tmp_path / 'shards'}").load()
    for one, two in zip(
        headjax.evaluation_batches(memory.validation, 4), headjax.evaluation_batches(stored.validation, 4), strict=True
    ):
        assert one.keys() == two.keys() == {"input_ids", "attention_mask", "labels"}
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])
    first, second = (next(train_iterator(data.train, 8, seed=3)) for data in (memory, stored))
    np.testing.assert_array_equal(first["input_ids"], second["input_ids"])
    assert memory.info["train"] == stored.info["train"]
    assert memory.info["labels"] == ["even", "odd"]
    assert measure_of(memory) == measure_of(stored) == Classes(names=("even", "odd"), chosen=("accuracy", "f1"))
