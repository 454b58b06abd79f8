from __future__ import annotations

import json

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.data import PreparedData, prepared
from headjax.data.prepare import prepare
from headjax.data.prepared import read_manifest
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


def test_shards_are_read_by_index_in_another_process_too(prepared_films):
    import pickle

    manifest = read_manifest(prepared_films)
    records = manifest.records(prepared_films, "train")
    copy = pickle.loads(pickle.dumps(records))
    np.testing.assert_array_equal(copy[42]["input_ids"], records[42]["input_ids"])
    assert isinstance(records, prepared.ShardRecords)
    with pytest.raises(IndexError):
        records[70]


def test_few_shards_are_open_at_a_time(prepared_films, monkeypatch):
    monkeypatch.setattr(prepared, "OPEN_SHARDS", 2)
    records = read_manifest(prepared_films).records(prepared_films, "train")
    everything = [records[index]["input_ids"].tolist() for index in range(70)]
    order = np.random.default_rng(0).permutation(70)
    assert [records[int(index)]["input_ids"].tolist() for index in order] == [everything[index] for index in order]
    assert len(records._readers) == 2
