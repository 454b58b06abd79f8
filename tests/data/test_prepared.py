"""Prepared folders as data: what does not fit, what is damaged, and reading by index."""

import pickle

import numpy as np
import pytest

import headjax
from headjax.data.store import open_prepared, prepare
from tests.data.films import FORM, SIZE


def test_data_that_does_not_fit(prepared_films, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADJAX_DATA", str(tmp_path))
    for fields, tokenizer, said in (
        ({}, headjax.byte_tokenizer(), "films: .*vocabulary"),
        ({"task": f"mnli:{prepared_films}"}, None, "holds films, not mnli"),
        ({"length": 128}, None, "prepared with length 12, config.data asks for 128"),
        ({"task": str(tmp_path / "nowhere")}, None, "nowhere: no such file"),
        ({"task": "mnli"}, None, "HEADJAX_DATA .*glue/MNLI"),
    ):
        with pytest.raises(headjax.DataError, match=said):
            headjax.data.DataConfig(**{"task": str(prepared_films)} | fields).load(tokenizer)


def test_damaged_shards_are_found_and_written_again(film_rows, wordpiece, tmp_path):
    out = tmp_path / "films"
    prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE)
    shard = out / "train-00001.array_record"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(headjax.DataError, match=r"films: .*damaged"):
        list(map(headjax.data.DataConfig(task=str(out)).load().train.__getitem__, range(70)))
    shard.write_bytes(whole[:1600] + bytes(64) + whole[1664:])  # in a record, which is found when it is read
    with pytest.raises(headjax.DataError, match=r"films: .*damaged"):
        list(map(headjax.data.DataConfig(task=str(out)).load().train.__getitem__, range(70)))
    shard.unlink()
    with pytest.raises(headjax.DataError, match=r"train-00001.array_record: missing"):
        headjax.data.DataConfig(task=str(out)).load()
    assert prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE).written == 1
    assert shard.read_bytes() == whole
    (out / "train-00001.json").write_bytes(b"PK")
    with pytest.raises(headjax.DataError, match=r"train-00001.array_record: missing or damaged"):
        headjax.data.DataConfig(task=str(out)).load()


def test_shards_are_read_by_index_in_another_process_too(prepared_films):
    records = open_prepared(prepared_films).stored("train").records
    everything = [records[index]["input_ids"].tolist() for index in range(70)]
    order = np.random.default_rng(0).permutation(70)
    for each in (records, pickle.loads(pickle.dumps(records))):
        assert [each[int(index)]["input_ids"].tolist() for index in order] == [everything[index] for index in order]
