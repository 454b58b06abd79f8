import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import os
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from headjax.cli import main
from headjax.core.errors import DataError, HeadjaxError
from headjax.data import PreparedData, shards
from headjax.data.prepare import prepare
from headjax.data.prepared import FORMAT, read_manifest
from headjax.data.shards import read_sizes
from headjax.data.stream import train_iterator
from headjax.tokenizers.learned import byte_tokenizer
from tests.data.films import FORM, SIZE


def test_data_that_does_not_fit(prepared_films, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADJAX_DATA", str(tmp_path))
    for fields, tokenizer, said in (
        ({}, byte_tokenizer(), "films: .*vocabulary"),
        ({"task": "mnli"}, None, "holds films, not mnli"),
        ({"length": 128}, None, "length 12, config.data.length is 128"),
        ({"path": str(tmp_path / "nowhere")}, None, "nowhere: no manifest.json"),
        ({"path": "", "task": "mnli"}, None, "HEADJAX_DATA .*prepared/mnli"),
    ):
        with pytest.raises(DataError, match=said):
            PreparedData(**{"path": str(prepared_films)} | fields).load(tokenizer)
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "films").symlink_to(prepared_films)
    assert len(PreparedData(task="films").load().train) == 70


def test_damaged_shards_are_found(film_rows, wordpiece, tmp_path, capsys):
    out = tmp_path / "films"
    prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE)
    shard = out / "train-00001.array_record"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"train-00001.array_record: .*(damaged|cannot be read)"):
        PreparedData(path=str(out)).load()
    assert main(["verify", str(tmp_path)]) == 2
    assert f"1 of {2 * len(read_manifest(out).shards)} files damaged: {shard}" in capsys.readouterr().out
    (tmp_path / "manifest.json").write_text("{}")  # of another program
    shard.unlink()
    with pytest.raises(DataError, match=r"train-00001.array_record: missing"):
        PreparedData(path=str(out)).load()
    assert prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE).written == 1
    assert shard.read_bytes() == whole
    assert main(["verify", str(tmp_path)]) == 0
    rewrite(out, of_earlier_version)
    assert prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE).written == 0
    assert PreparedData(path=str(out)).load().info["train"]["examples"] == 70
    capsys.readouterr()
    assert main(["verify", str(tmp_path), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["without_checksums"] == [str(out)]


def test_manifests_that_cannot_be_read(prepared_films, tmp_path):
    folder = shutil.copytree(prepared_films, tmp_path / "films")
    file = folder / "manifest.json"
    data = json.loads(file.read_text())
    later = data | {"format": FORMAT + 1, "versions": data["versions"] | {"headjax": "9.0.0"}}
    contents = [json.dumps(later), "{", "[]", '{"versions": 1}', json.dumps(data | {"task": "movies"})]
    names = ("train-00001\0", "../train-00001", "train-00000")
    for item, run in (
        *(({"name": f"{name}.array_record"}, {}) for name in names),
        ({"examples": -1}, {}),
        ({}, {"repeat": 3}),
    ):
        earlier = json.loads(json.dumps(data))
        of_earlier_version(earlier)  # which has no checksum
        earlier["shards"][1]["item"] |= item
        earlier["shards"][1] |= run
        contents.append(json.dumps(earlier))
    for content in contents:
        file.write_text(content)
        with pytest.raises(DataError, match=rf"^{file}: "):
            PreparedData(path=str(folder)).load()


def digest(folder):
    """The hash of everything that a prepared folder gives."""
    data = PreparedData(path=str(folder)).load()
    found = [dict(data.info, text="")]
    found += [[one[name].tolist() for name in one] for source in (data.train, data.validation) for one in source]
    return hashlib.sha256(repr(found).encode()).hexdigest()


def rewrite(folder, change):
    """Change the manifest's data."""
    data = json.loads((folder / "manifest.json").read_text())
    change(data)
    (folder / "manifest.json").write_text(json.dumps(data))


def of_earlier_version(data):
    """A manifest without checksums."""
    data["format"] = 1
    for name in ("rows", "crc32"):
        del data[name]
    for run in data["shards"]:
        for name in ("bytes", "crc32", "sizes_crc32"):
            del run["item"][name]


@pytest.mark.parametrize("checksums", [True, False])
def test_no_flipped_bit_goes_unnoticed(prepared_films, tmp_path, checksums):
    """A flipped bit is one line, or changes nothing. Folders of earlier versions have no checksums, but lengths have
    bounds, and shards names."""
    folder = shutil.copytree(prepared_films, tmp_path / "films")
    names = ["manifest.json", "train-00001.npy", "validation-00000.npy", "train-00001.array_record"]
    if not checksums:
        rewrite(folder, of_earlier_version)
    expected = digest(folder)
    for name in names:
        whole = (folder / name).read_bytes()
        generator = np.random.default_rng(0)
        for place in generator.integers(0, 8 * min(len(whole), 2000), 40):
            damaged = bytearray(whole)
            damaged[place // 8] ^= 1 << place % 8
            (folder / name).write_bytes(bytes(damaged))
            with contextlib.suppress(HeadjaxError):
                assert digest(folder) == expected or not checksums
        (folder / name).write_bytes(whole)


def npy(sizes, dtype="<i4"):
    file = io.BytesIO()
    np.save(file, np.asarray(sizes, dtype))
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [b"", b"PK\x03\x04", npy([3, 4]), npy([[3] * 14]), npy([3.0] * 14, "<f4"), npy([3] * 13 + [10**9]), npy([0] * 14)],
)
def test_damaged_sizes_are_found(prepared_films, data, tmp_path):
    folder = shutil.copytree(prepared_films, tmp_path / "films")
    file = folder / "train-00001.npy"
    shard = dataclasses.replace(read_manifest(folder).shards[1], sizes_crc32="")
    assert shard.examples == 14
    assert read_sizes(folder / shard.name, shard, FORM.limit).tolist()
    file.write_bytes(data)
    with pytest.raises(DataError, match=rf"^{file}: damaged: "):
        read_sizes(folder / shard.name, shard, FORM.limit)


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


def test_threads_read_a_shard_at_the_same_time(prepared_films, monkeypatch):
    """In a bucket a record is a request, and one after another they would take seconds a batch."""
    both = threading.Barrier(2, timeout=30)
    open_shard = shards.ShardRecords._open

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
    monkeypatch.setattr(shards.ShardRecords, "_open", staticmethod(Waiting))
    records = read_manifest(prepared_films).records(prepared_films, "train")
    with ThreadPoolExecutor(2) as pool:
        assert [record["input_ids"].tolist() for record in pool.map(records.__getitem__, (0, 1))] == expected


def test_shards_are_read_by_index_few_at_a_time_and_in_another_process_too(prepared_films, monkeypatch):
    monkeypatch.setattr(shards, "OPEN_SHARDS", 2)
    records = read_manifest(prepared_films).records(prepared_films, "train")
    everything = [records[index]["input_ids"].tolist() for index in range(70)]
    order = np.random.default_rng(0).permutation(70)
    for each in (records, pickle.loads(pickle.dumps(records))):
        assert [each[int(index)]["input_ids"].tolist() for index in order] == [everything[index] for index in order]
        assert len(each._readers) == 2
    with pytest.raises(IndexError):
        records[70]
