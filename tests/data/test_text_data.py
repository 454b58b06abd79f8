"""Running text, pairs of translations and questions, from files to examples."""

import gzip
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import headjax
from headjax.core.serialize import from_data, to_data
from headjax.data.files import aligned_pairs
from headjax.data.forms.questions import QUESTION_LENGTH
from headjax.data.stream import train_iterator
from headjax.tokenizers import vocabularies
from tests.data.squad import SHORT, long_paragraph, write_squad


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(f"paragraph {i}: " + "some words of it " * (3 + i % 5) for i in range(200)))
    return path


def test_text_becomes_blocks_and_counts(file):
    data = headjax.data.DataConfig(task=str(file), length=64, vocab_size=300).load()
    assert data.tokenizer.vocab_size == 300
    end = data.tokenizer.special_id("eos_token")
    for name, source in (("train", data.train), ("validation", data.validation)):
        counts = data.info[name]
        assert len(source) == counts["tokens"] // 64
        assert source[len(source) - 1]["input_ids"].shape == (64,)
        text = data.tokenizer.decode(source.items[source.items != end])
        assert 0 <= counts["bytes"] - len(text.encode()) < 64 * 16
        assert counts["bytes_per_token"] == counts["bytes"] / counts["tokens"]
        assert counts["documents"] - 1 <= int((source.items == end).sum()) <= counts["documents"]
    json.dumps(data.info)


def test_validation_text_does_not_shape_the_tokenizer(file, monkeypatch):

    seen = []
    monkeypatch.setitem(
        vocabularies.TRAINERS, "bytes", lambda texts, size: seen.extend(texts) or headjax.byte_tokenizer()
    )
    data = headjax.data.DataConfig(task=str(file), length=16, tokenizer="bytes", validation_fraction=0.3).load()
    assert sum(len(text.encode()) for text in seen) == data.info["train"]["bytes"]


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("task", {"task": ""}),
        ("length", {"length": 1, "tokenizer": "bytes"}),
        ("vocab_size", {"vocab_size": -1}),
        ("tokenizer", {"tokenizer": "byte"}),
        ("validation_fraction", {"validation_fraction": 1.0}),
        ("form.stride", {"form": {"stride": -1}}),
    ],
)
def test_bad_fields_are_named(file, field, fields):
    with pytest.raises(headjax.ConfigError, match=f"{field}: "):
        headjax.data.DataConfig(**{"task": str(file)} | fields).load()


def test_too_little_text(file):
    for fields, said in (
        ({"vocab_size": 9000}, r"vocab_size: the text yields only \d+ tokens"),
        ({"length": 5000, "tokenizer": "bytes"}, r"length: the validation text has \d+ tokens"),
        ({"task": f"text:{file}.missing"}, f"{file}.missing: "),
    ):
        with pytest.raises(headjax.DataError, match=f"^{said}"):
            headjax.data.DataConfig(**{"task": str(file)} | fields).load()


@pytest.mark.whole
def test_data_imports_neither_tensorflow_nor_pytorch_and_is_the_same_in_another_process(file):
    code = f"""
import pkgutil, importlib, sys, warnings
warnings.simplefilter("error")
import headjax.data
for module in pkgutil.iter_modules(headjax.data.__path__):
    if module.name != "seqio_tasks":  # the module that imports TensorFlow
        importlib.import_module("headjax.data." + module.name)
late = {{"tensorflow", "seqio", "torch", "transformers", "grain", "tokenizers"}} & set(sys.modules)
assert not late, late
from headjax.data import DataConfig
from headjax.data.stream import train_iterator
data = DataConfig(task={str(file)!r}, length=64, vocab_size=300).load()
next(train_iterator(data.train, 2, 0))
late = {{"tensorflow", "torch"}} & set(sys.modules)
assert not late, late
print(data.info["tokenizer"], data.info["data"])
"""
    # Strings hash otherwise there than here, where the seed is drawn.
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    data = headjax.data.DataConfig(task=str(file), length=64, vocab_size=300).load()
    assert run.stdout.split() == [data.info["tokenizer"], data.info["data"]]


ENGLISH = ["one", "two dogs", "", "three cats sleep", "four"]
GERMAN = ["eins", "zwei Hunde", "leer", "drei Katzen schlafen", "vier"]
END = 256


@pytest.fixture
def prefix(tmp_path):
    for name in ("train", "val"):
        (tmp_path / f"{name}.en").write_text("\n".join(ENGLISH) + "\n")
        (tmp_path / f"{name}.de.gz").write_bytes(gzip.compress(("\n".join(GERMAN) + "\n").encode()))
    return str(tmp_path)


def config(prefix, target="de", **fields):
    return headjax.data.DataConfig(
        **{"task": f"translation:{prefix}/train:en-{target}", "validation": f"{prefix}/val"} | fields
    )


def test_pairs_become_examples(prefix):
    data = config(prefix, length=24).load(headjax.byte_tokenizer())
    assert data.info["train"]["pairs"] == 4
    row = data.train[1]
    assert bytes(row["input_ids"][:8].astype(np.uint8)) == b"two dogs"
    assert row["input_ids"][8] == END
    assert row["attention_mask"].sum() == 9
    labels = row["labels"][row["labels"] != -100]
    assert bytes(labels[:-1].astype(np.uint8)) == b"zwei Hunde"
    assert labels[-1] == END
    assert row["labels"].shape == row["input_ids"].shape == (24,)
    assert data.validation.references == ("eins", "zwei Hunde", "drei Katzen schlafen", "vier")
    last = list(headjax.evaluation_batches(data.validation, 3))[-1]
    assert (last["labels"][1:] == -100).all()
    json.dumps(data.info)
    buckets = config(prefix, length=24, buckets=(8, 16)).load(headjax.byte_tokenizer())  # which pad both sides alike
    iterator = train_iterator(buckets.train, 2, 0)
    batches = [next(iterator) for _ in range(8)]
    shapes = {tuple(batch[name].shape for name in ("input_ids", "labels")) for batch in batches}
    assert all(source == target for source, target in shapes)
    assert ((2, 8), (2, 8)) in shapes
    assert from_data(headjax.data.DataConfig, to_data(config(prefix))) == config(prefix)


def test_long_training_pairs_are_left_out_and_validation_is_cut(prefix):
    data = config(prefix, length=12).load(headjax.byte_tokenizer())
    assert data.info["train"] == data.info["train"] | {"pairs": 3, "left_out": 1}
    targets = [(data.validation[index]["labels"] != -100).sum() for index in range(4)]
    assert targets == [5, 11, 12, 5]
    # `zwei Hunde` and the end are 11 tokens.
    pairs = [config(prefix, length=length).load(headjax.byte_tokenizer()).info["train"]["pairs"] for length in (11, 10)]
    assert pairs == [3, 2]
    with pytest.raises(headjax.DataError, match=r"train: pair 0: .*length is 4"):
        config(prefix, length=4).load(headjax.byte_tokenizer())


def test_a_shared_vocabulary_is_learned(prefix):
    data = config(prefix, vocab_size=260).load()
    assert data.tokenizer.vocab_size == 260
    assert data.tokenizer.decode(data.train[0]["input_ids"]).startswith("one")
    alone = config(prefix, validation="", whole=True)
    with pytest.raises(headjax.DataError, match="no text to learn a vocabulary from"):
        alone.load()
    assert len(alone.load(headjax.byte_tokenizer()).train) == 0


def test_tables_hold_pairs_too(tmp_path):
    """With a header, and without one as MTNT has it: number, source, target."""
    rows = [f"{i}\t{pair[0]}\t{pair[1]}" for i, pair in enumerate(zip(ENGLISH, GERMAN, strict=True))]
    (tmp_path / "plain.tsv").write_text("\n".join(rows) + "\n")
    (tmp_path / "named.csv").write_text('de,en\neins,one\n"zwei, drei",two\n')
    plain = headjax.data.DataConfig(task=f"translation:{tmp_path}/plain.tsv:1-2", whole=True).load(
        headjax.byte_tokenizer()
    )
    assert plain.validation.references == ("eins", "zwei Hunde", "drei Katzen schlafen", "vier")
    named = headjax.data.DataConfig(task=f"translation:{tmp_path}/named.csv:en-de", whole=True).load(
        headjax.byte_tokenizer()
    )
    assert named.validation.references == ("eins", "zwei, drei")
    with pytest.raises(headjax.DataError, match=r"named\.csv: unknown column 'fr'"):
        headjax.data.DataConfig(task=f"translation:{tmp_path}/named.csv:en-fr", whole=True).load(
            headjax.byte_tokenizer()
        )


def test_files_must_belong_together(prefix, tmp_path):
    (tmp_path / "val.en").write_text("one\n")
    for target, said in (("de", r"val.en: \d lines, but val.de.gz"), ("fr", "train.fr: ")):
        with pytest.raises(headjax.DataError, match=said):
            config(prefix, target=target).load(headjax.byte_tokenizer())
    (tmp_path / "val.en").write_text("one\n\n\n\n\n")
    (tmp_path / "val.de.gz").write_bytes(gzip.compress(b"\nzwei\ndrei\n\n\n"))
    with pytest.raises(headjax.DataError, match=r"val: "):
        list(aligned_pairs(f"{prefix}/val", "en", "de"))


def judged(path, **fields):
    """All questions of a file, to evaluate on."""
    return headjax.data.DataConfig(
        **{"task": f"questions:{path}", "whole": True, "length": 100, "form": {"stride": 8}} | fields
    )


def test_spans_are_the_answers(tmp_path, wordpiece):
    path = write_squad(tmp_path / "a.json", SHORT)
    rows = judged(path).load(wordpiece).validation
    assert len(rows) == 2
    assert rows.windows[1].question.answers == ("film", "x")
    for window, answer in enumerate(("very good", "film")):
        row = rows[window]
        assert rows.windows[window].answer(row["start_positions"], row["end_positions"]) == answer
        assert row["window"] == window
        np.testing.assert_array_equal(row["context_mask"], row["token_type_ids"] * (row["context_mask"] == 1))
    spaced = [{"text": " very good ", "answer_start": 3}]
    entry = SHORT["qas"][0] | {"answers": spaced}
    path = write_squad(tmp_path / "b.json", {"context": "it  very good film", "qas": [entry]})
    (row,) = judged(path).load(wordpiece).validation
    assert row["end_positions"] - row["start_positions"] == 1
    words = [wordpiece.backend.id_to_token(int(one)) for one in rows[0]["input_ids"][:6]]
    assert words == ["[CLS]", "was", "it", "good", "[SEP]", "the"]


def test_long_paragraphs_have_overlapping_windows(tmp_path, wordpiece):
    path = write_squad(tmp_path / "a.json", long_paragraph(), SHORT)
    rows = judged(path, form={"stride": 16}).load(wordpiece).validation
    windows = [window for window in rows.windows if window.number == 0]
    assert len(windows) == 2
    ends = [window.offsets[window.offsets[:, 1] > 0] for window in windows]
    overlap = {tuple(span) for span in ends[0]} & {tuple(span) for span in ends[1]}
    assert len(overlap) == 16
    assert ends[-1][-1][1] == len(rows.windows[0].question.context)
    spans = [(int(rows[i]["start_positions"]), int(rows[i]["end_positions"])) for i in range(2)]
    assert spans[0] == (0, 0)
    assert rows.windows[1].answer(*spans[1]) == "unhappy"  # three pieces
    assert rows.windows[2].number == 1


def asked(**fields):
    return {
        "data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "7", "question": "", "answers": []} | fields]}]}]
    }


@pytest.mark.parametrize(
    "data, said",
    [
        ('{"data": []}', "no questions"),
        ("[]", "not in SQuAD's format"),
        (asked(question=2, id=1), "not in SQuAD's format"),
        ('{"data": [{"paragraphs": [{"qas": [{"id": "7"}]}]}]}', "not in SQuAD's format .KeyError: 'context'"),
        (asked(), "question 7: no answer"),
        (asked(answers=[{"text": "b", "answer_start": 1}]), "question 7: .*character 1"),
        ('{"data": [\n}', "line 2: not JSON"),
    ],
)
def test_broken_files(tmp_path, wordpiece, data, said):
    path = tmp_path / "a.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    with pytest.raises(headjax.DataError, match=f"^{path}: {said}"):
        judged(path).load(wordpiece)


def test_questions_are_cut_and_some_are_read(tmp_path, wordpiece):
    entry = {"id": "q", "question": "a " * 90, "answers": [{"text": "film", "answer_start": 4}]}
    path = write_squad(tmp_path / "a.json", {"context": "The film", "qas": [entry]}, SHORT)
    rows = judged(path, limit=1).load(wordpiece).validation
    assert {window.question.id for window in rows.windows} == {"q"}
    assert rows[0]["attention_mask"].sum() == QUESTION_LENGTH + 2 + 3
    for fields, given, named in (
        ({"length": 80, "form": {"stride": 128}}, wordpiece, "length: 80"),
        ({}, headjax.byte_tokenizer(), "tokenizer: "),
        ({}, None, "config.data.tokenizer: "),
    ):
        with pytest.raises(headjax.DataError, match=f"^{named}"):
            judged(path, **fields).load(given)
