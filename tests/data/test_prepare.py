from __future__ import annotations

import dataclasses
import errno
import json
import os

import numpy as np
import pytest

from headjax.core.errors import ConfigError, DataError
from headjax.data import PreparedData, prepared
from headjax.data import prepare as preparing
from headjax.data.forms import LabelledForm, LanguageForm
from headjax.data.prepare import prepare
from headjax.data.prepared import read_manifest
from headjax.data.rows import Row, RowSource
from headjax.data.stream import evaluation_batches, train_iterator
from headjax.mesh.distributed import BatchShare
from headjax.tokenizers.learned import byte_tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests.data.vocabulary import TEXT, write_vocabulary

FORM = LabelledForm(length=12, classes=("bad", "good"))
SIZE = 250
"""Bytes of a shard: about ten rows."""


def rows(count, seed=0):
    generator = np.random.default_rng(seed)
    words = [word for word in TEXT if word.isalpha()]
    texts = [" ".join(generator.choice(words, generator.integers(1, 8))) for _ in range(count)]
    return [Row(f"film.tsv: line {i}", {"text": text, "label": i % 2}) for i, text in enumerate(texts)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return wordpiece_tokenizer(write_vocabulary(tmp_path_factory.mktemp("vocabulary")))


@pytest.fixture(scope="module")
def splits():
    return {"train": RowSource.of(rows(70)), "validation": RowSource.of(rows(15, seed=1))}


@pytest.fixture(scope="module")
def folder(tokenizer, splits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared") / "films"
    prepare("films", FORM, splits, tokenizer, folder, shard_bytes=SIZE)
    return folder


def contents(folder):
    """Every shard's bytes, and the manifest."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}


def test_examples_are_those_of_the_form(folder, splits, tokenizer):
    data = PreparedData(path=str(folder)).load()
    assert data.tokenizer == tokenizer
    assert len(data.train) == 70
    for index in (0, 13, 69):
        row, example = splits["train"].rows()[index].values, data.train[index]
        ids = tokenizer.backend.encode(row["text"]).ids[:12]
        assert example["input_ids"][: len(ids)].tolist() == ids
        assert example["attention_mask"].tolist() == [1] * len(ids) + [0] * (len(example["input_ids"]) - len(ids))
        assert example["labels"] == row["label"]
    (batch,) = evaluation_batches(data.validation, 15)
    assert batch["labels"].tolist() == [row.values["label"] for row in splits["validation"].rows()]
    assert data.info["train"]["examples"] == 70
    assert data.info["labels"] == ["bad", "good"]


def test_manifest(folder, tokenizer):
    manifest = read_manifest(folder)
    assert len(manifest.of("train")) > 3
    assert manifest.tokenizer == tokenizer.fingerprint
    assert manifest.versions["headjax"]
    data = json.loads((folder / "manifest.json").read_text())
    assert data["form"] == {"kind": "labelled", "length": 12, "pairs": False, "classes": ["bad", "good"]}


def test_training_reads_every_example_once_an_epoch_and_resumes(folder):
    def read(iterator, count):
        return [next(iterator)["input_ids"] for _ in range(count)]

    source = PreparedData(path=str(folder)).load().train
    whole = read(train_iterator(source, 10, 0), 14)
    epoch = np.concatenate(whole[:7])
    everything = np.stack([source[index]["input_ids"] for index in range(70)])
    assert sorted(map(tuple, epoch)) == sorted(map(tuple, everything))
    halves = [train_iterator(source, 10, 0, share=BatchShare(index, 2), threads=2) for index in (0, 1)]
    for half in halves:
        read(half, 5)
    again = [train_iterator(source, 10, 0, share=BatchShare(index, 5)) for index in range(5)]
    for iterator in again:
        iterator.set_state(halves[0].get_state())
    parts = [np.concatenate([next(iterator)["input_ids"] for iterator in again]) for _ in range(9)]
    np.testing.assert_array_equal(parts, whole[5:])


def test_buckets_pad_less(folder):
    data = PreparedData(path=str(folder), buckets=(4, 8)).load()
    lengths = {
        next(iterator)["input_ids"].shape[1] for iterator in [train_iterator(data.train, 5, 0)] for _ in range(14)
    }
    assert len(lengths) > 1
    assert lengths <= {4, 8, 12}


def test_prepared_again_nothing_is_written(folder, splits, tokenizer, monkeypatch):
    before = contents(folder)
    monkeypatch.setattr(preparing, "write_shard", None)
    assert prepare("films", FORM, splits, tokenizer, folder, shard_bytes=SIZE).written == 0
    assert contents(folder) == before


def test_a_full_disk_keeps_whole_shards_and_the_rest_resumes(folder, splits, tokenizer, tmp_path, monkeypatch):
    out = tmp_path / "films"
    replace, room = type(out).replace, [4]

    def full(self, target):
        if str(target).endswith(".array_record"):
            room[0] -= 1
            if room[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(type(out), "replace", full)
        with pytest.raises(DataError, match=r"train-00004.array_record: cannot be written .*No space left"):
            prepare("films", FORM, splits, tokenizer, out, shard_bytes=SIZE)
    assert {file.name for file in out.glob("*.array_record*")} == {f"train-{i:05d}.array_record" for i in range(4)}
    with pytest.raises(DataError, match="films: not prepared to the end; the same `headjax prepare` goes on"):
        PreparedData(path=str(out)).load()
    kept = {file.name: file.stat().st_mtime_ns for file in out.glob("*.array_record")}
    done = prepare("films", FORM, splits, tokenizer, out, shard_bytes=SIZE)
    assert done.written == len(done.manifest.shards) - 4
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    assert contents(out) == contents(folder)


def test_shards_are_written_while_rows_are_still_read(tokenizer, splits, tmp_path):
    shard, seen = tmp_path / "films" / "train-00000.array_record", []

    def reading():
        for row in rows(70):
            seen.append(shard.exists())
            yield row

    prepare("films", FORM, splits | {"train": RowSource(reading)}, tokenizer, tmp_path / "films", shard_bytes=SIZE)
    assert 0 < seen.index(True) < 20


def test_several_processes_write_the_same(folder, splits, tokenizer, tmp_path):
    prepare("films", FORM, splits, tokenizer, tmp_path / "films", shard_bytes=SIZE, processes=2)
    assert contents(tmp_path / "films") == contents(folder)


def test_only_shards_whose_rows_changed_are_written_again(folder, splits, tokenizer, tmp_path):
    out = tmp_path / "films"
    changed = [*splits["train"].rows()]
    changed[-1] = Row("elsewhere", {"text": "the dull dull film", "label": "good"})
    prepare("films", FORM, splits, tokenizer, out, shard_bytes=SIZE)
    done = prepare("films", FORM, splits | {"train": RowSource.of(changed)}, tokenizer, out, shard_bytes=SIZE)
    assert done.written == 1
    assert PreparedData(path=str(out)).load().train[69]["labels"] == 1
    fewer = prepare("films", FORM, splits | {"train": RowSource.of(changed[:5])}, tokenizer, out, shard_bytes=SIZE)
    assert {file.name for file in out.glob("train*")} == {"train-00000.array_record", "train-00000.npy"}
    assert fewer.manifest.counts("train")["examples"] == 5


def test_bad_rows_name_their_place(splits, tokenizer, tmp_path):
    def attempt(**values):
        bad = RowSource.of([*rows(40), Row("film.tsv: line 41", {"text": "a film", "label": 0} | values)])
        prepare("films", FORM, splits | {"train": bad}, tokenizer, tmp_path / "films", shard_bytes=SIZE)

    with pytest.raises(DataError, match=r"^film.tsv: line 41: unknown label 'goood'; did you mean 'good'\?$"):
        attempt(label="goood")
    with pytest.raises(DataError, match=r"^film.tsv: line 41: unknown label '2'"):
        attempt(label=2)
    with pytest.raises(DataError, match=r"^film.tsv: line 41: text is blank$"):
        attempt(text=" ")
    assert len(list((tmp_path / "films").glob("train-*.array_record"))) == 2  # those before the bad row are kept
    attempt()
    with pytest.raises(DataError, match=r"^films: the split validation has no examples$"):
        prepare("films", FORM, splits | {"validation": RowSource.of([])}, tokenizer, tmp_path / "empty")


def test_a_folder_of_something_else(folder, splits, tokenizer, tmp_path):
    with pytest.raises(DataError, match=r"films: holds another preparation, length was 12 and is 10 now"):
        prepare("films", dataclasses.replace(FORM, length=10), splits, tokenizer, folder, shard_bytes=SIZE)
    with pytest.raises(DataError, match="tokenizer was"):
        prepare("films", FORM, splits, byte_tokenizer(), folder, shard_bytes=SIZE)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="not empty, and not prepared by this command"):
        prepare("films", FORM, splits, tokenizer, tmp_path)
    with pytest.raises(DataError, match=r"notes.txt: not empty, and not prepared"):
        prepare("films", FORM, splits, tokenizer, tmp_path / "notes.txt")
    with pytest.raises(ConfigError, match=r"^seed: must not be negative, got -1"):
        prepare("films", FORM, splits, tokenizer, tmp_path / "seed", seed=-1)
    with pytest.raises(DataError, match="it has no eos_token"):
        prepare("films", LanguageForm(), splits, tokenizer, tmp_path / "text")


def test_data_that_does_not_fit(folder, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"another vocabulary .* than the model's \(257 tokens"):
        PreparedData(path=str(folder)).load(byte_tokenizer())
    with pytest.raises(DataError, match="holds films, not mnli"):
        PreparedData(path=str(folder), task="mnli").load()
    with pytest.raises(DataError, match=r"prepared with length 12, config.data.length is 128"):
        PreparedData(path=str(folder), length=128).load()
    with pytest.raises(DataError, match=r"nowhere: no manifest.json, so it is no folder that `headjax prepare` wrote"):
        PreparedData(path=str(tmp_path / "nowhere")).load()
    monkeypatch.setenv("HEADJAX_DATA", str(tmp_path))
    with pytest.raises(DataError, match="HEADJAX_DATA has no folder prepared/mnli with what `headjax prepare mnli`"):
        PreparedData(task="mnli").load()
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "films").symlink_to(folder)
    assert len(PreparedData(task="films").load().train) == 70


def test_damaged_shards_are_found(splits, tokenizer, tmp_path):
    out = tmp_path / "films"
    prepare("films", FORM, splits, tokenizer, out, shard_bytes=SIZE)
    shard = out / "train-00001.array_record"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"train-00001.array_record: .*(damaged|cannot be read)"):
        PreparedData(path=str(out)).load()
    shard.unlink()
    with pytest.raises(DataError, match=r"train-00001.array_record: missing; remove it and prepare again"):
        PreparedData(path=str(out)).load()
    assert prepare("films", FORM, splits, tokenizer, out, shard_bytes=SIZE).written == 1
    assert shard.read_bytes() == whole
    (out / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest.json: broken"):
        PreparedData(path=str(out)).load()


def test_shards_are_read_by_index_in_another_process_too(folder):
    import pickle

    manifest = read_manifest(folder)
    records = manifest.records(folder, "train")
    copy = pickle.loads(pickle.dumps(records))
    np.testing.assert_array_equal(copy[42]["input_ids"], records[42]["input_ids"])
    assert isinstance(records, prepared.ShardRecords)
    with pytest.raises(IndexError):
        records[70]


def test_few_shards_are_open_at_a_time(folder, monkeypatch):
    monkeypatch.setattr(prepared, "OPEN_SHARDS", 2)
    records = read_manifest(folder).records(folder, "train")
    everything = [records[index]["input_ids"].tolist() for index in range(70)]
    order = np.random.default_rng(0).permutation(70)
    assert [records[int(index)]["input_ids"].tolist() for index in order] == [everything[index] for index in order]
    assert len(records._readers) == 2
