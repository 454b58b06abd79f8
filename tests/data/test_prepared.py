from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.data import PreparedData, prepared
from headjax.data.prepare import prepare
from headjax.data.prepared import read_manifest
from headjax.data.stream import train_iterator
from headjax.mesh.distributed import BatchShare
from headjax.tokenizers.learned import byte_tokenizer
from tests.data.films import FORM, SIZE


def test_data_that_does_not_fit(prepared_films, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"another vocabulary .* than the model's \(257 tokens"):
        PreparedData(path=str(prepared_films)).load(byte_tokenizer())
    with pytest.raises(DataError, match="holds films, not mnli"):
        PreparedData(path=str(prepared_films), task="mnli").load()
    with pytest.raises(DataError, match=r"prepared with length 12, config.data.length is 128"):
        PreparedData(path=str(prepared_films), length=128).load()
    with pytest.raises(DataError, match=r"nowhere: no manifest.json, not a folder that `headjax prepare` wrote"):
        PreparedData(path=str(tmp_path / "nowhere")).load()
    monkeypatch.setenv("HEADJAX_DATA", str(tmp_path))
    with pytest.raises(DataError, match="HEADJAX_DATA has no folder prepared/mnli with what `headjax prepare mnli`"):
        PreparedData(task="mnli").load()
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "films").symlink_to(prepared_films)
    assert len(PreparedData(task="films").load().train) == 70


def test_damaged_shards_are_found(film_rows, wordpiece, tmp_path):
    out = tmp_path / "films"
    prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE)
    shard = out / "train-00001.array_record"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"train-00001.array_record: .*(damaged|cannot be read)"):
        PreparedData(path=str(out)).load()
    shard.unlink()
    with pytest.raises(DataError, match=r"train-00001.array_record: missing; remove it and prepare again"):
        PreparedData(path=str(out)).load()
    assert prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE).written == 1
    assert shard.read_bytes() == whole
    later = json.loads((out / "manifest.json").read_text())
    later = later | {"format": 2, "versions": later["versions"] | {"headjax": "9.0.0"}}
    (out / "manifest.json").write_text(json.dumps(later))
    with pytest.raises(DataError, match=r"manifest.json: format 2 is newer .*; install headjax 9\.0\.0 or later$"):
        PreparedData(path=str(out)).load()
    (out / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest.json: broken"):
        PreparedData(path=str(out)).load()


def npy(header):
    text = f"{header}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"cannot be read \(No data left in file\)"),
        (b"PK\x03\x04", r"cannot be read \("),
        (npy("{'descr': '<i4', 'fortran_order': False, 'shape': (10000000000000,)}"), r"cannot be read \("),
        (npy("{'descr': '<i4', 'fortran_order': False, 'shape': (1, 0)}"), "not a list of whole numbers"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (0,)}"), "not a list of whole numbers"),
        (npy("{'descr': '<i4', 'fortran_order': False, 'shape': (0,)}"), r"0 sizes for \d+ records"),
    ],
)
def test_damaged_sizes_are_found(prepared_films, data, message, tmp_path):
    folder = shutil.copytree(prepared_films, tmp_path / "films")
    next(folder.glob("train-*.npy")).write_bytes(data)
    with pytest.raises(DataError, match=rf"train-\d+\.npy: {message}"):
        read_manifest(folder).records(folder, "train").sizes()


@pytest.mark.parametrize("cut", [0, 1, 100, 500, 2000])
@pytest.mark.parametrize("threads", [0, 2])
def test_a_shard_that_is_cut_while_it_is_read_is_named(threads, cut, prepared_films, tmp_path):
    """Training has it open: whatever is left of it, no example is wrong, and the error is one line."""
    out = tmp_path / "films"
    shutil.copytree(prepared_films, out)
    shard = out / "train-00001.array_record"
    ours, theirs = (
        train_iterator(PreparedData(path=str(folder)).load().train, 7, 0, threads=count)
        for folder, count in ((out, threads), (prepared_films, 0))
    )
    next(ours), next(theirs)
    os.truncate(shard, cut)

    def epochs():
        for batch in itertools.islice(ours, 30):
            np.testing.assert_array_equal(batch["input_ids"], next(theirs)["input_ids"])

    with pytest.raises(DataError, match=rf"^{shard}: (damaged|cannot be read)") as caught:
        epochs()
    assert "\n" not in str(caught.value)


def test_shards_are_read_by_index_in_another_process_too(prepared_films):
    import pickle

    manifest = read_manifest(prepared_films)
    records = manifest.records(prepared_films, "train")
    copy = pickle.loads(pickle.dumps(records))
    np.testing.assert_array_equal(copy[42]["input_ids"], records[42]["input_ids"])
    assert isinstance(records, prepared.ShardRecords)
    with pytest.raises(IndexError):
        records[70]


def test_processes_open_the_shards_of_their_ranges(film_rows, wordpiece, tmp_path):
    """70 examples in batches of 8, two epochs: a border lies in a shard and moves by up to 8 examples."""
    prepare("films", FORM, film_rows, wordpiece, tmp_path / "films", shard_bytes=SIZE // 8)
    opened = []
    for index in range(4):
        data = PreparedData(path=str(tmp_path / "films"), ranges=4).load()
        iterator = train_iterator(data.train, 8, 0, share=BatchShare(index, 4), ranges=data.ranges)
        for _ in range(18):
            next(iterator)
        opened.append(sorted(data.train.records._readers))
    shards = len(read_manifest(tmp_path / "films").of("train"))
    assert shards > 20
    assert sorted({shard for some in opened for shard in some}) == list(range(shards))
    for some, following in itertools.pairwise(opened):
        assert some == list(range(some[0], some[-1] + 1))
        assert len(set(some) & set(following)) <= 8
    assert max(map(len, opened)) < shards / 2


def test_threads_read_a_shard_at_the_same_time(prepared_films, monkeypatch):
    """In a bucket a record is a request, and one after another they would take seconds a batch."""
    both = threading.Barrier(2, timeout=30)
    open_shard = prepared.ShardRecords._open

    class Waiting:
        def __init__(self, path):
            self.reader = open_shard(path)

        def num_records(self):
            return self.reader.num_records()

        def read(self, indices):
            both.wait()
            return self.reader.read(indices)

    records = read_manifest(prepared_films).records(prepared_films, "train")
    expected = [records[index]["input_ids"].tolist() for index in (0, 1)]
    monkeypatch.setattr(prepared.ShardRecords, "_open", staticmethod(Waiting))
    records = read_manifest(prepared_films).records(prepared_films, "train")
    with ThreadPoolExecutor(2) as pool:
        assert [record["input_ids"].tolist() for record in pool.map(records.__getitem__, (0, 1))] == expected


def test_few_shards_are_open_at_a_time(prepared_films, monkeypatch):
    monkeypatch.setattr(prepared, "OPEN_SHARDS", 2)
    records = read_manifest(prepared_films).records(prepared_films, "train")
    everything = [records[index]["input_ids"].tolist() for index in range(70)]
    order = np.random.default_rng(0).permutation(70)
    assert [records[int(index)]["input_ids"].tolist() for index in order] == [everything[index] for index in order]
    assert len(records._readers) == 2
