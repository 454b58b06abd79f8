"""Preparation: what it writes, and how it resumes, on one host or several."""

import dataclasses
import errno
import json
import os
import shutil

import numpy as np
import pytest

import headjax
from headjax.core.programs import Share
from headjax.data import store
from headjax.data.forms import LanguageForm
from headjax.data.rows import Row, RowSource
from headjax.data.store import READ_AHEAD, open_prepared, prepare
from headjax.data.stream import train_iterator
from tests.buckets import path_of
from tests.data.films import FORM, SIZE, rows


@pytest.fixture
def run(film_rows, wordpiece):
    """Prepare the films, as one of several hosts or alone."""

    def prepared(out, index=0, count=1, form=FORM, **splits):
        found = film_rows | splits
        host = Share(index, count)
        return prepare("films", form, found, wordpiece, out, shard_bytes=SIZE, host=host)

    return prepared


def changed_rows(film_rows, *places):
    """The films to train on with other rows at these places."""
    changed = [*film_rows["train"].rows()]
    for place in places:
        changed[place] = Row("elsewhere", {"text": "the dull dull film", "label": "good"})
    return RowSource.of(changed)


def contents(folder):
    """The bytes of every shard, and of the files beside it."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.startswith(("train", "validation"))}


def assert_same(folder, other):
    """Two prepared folders hold the same shards."""
    assert contents(folder) == contents(other)


def test_examples_are_those_of_the_form(prepared_films, film_rows, wordpiece):
    data = headjax.data.DataConfig(task=str(prepared_films)).load()
    iterator = train_iterator(headjax.data.DataConfig(task=str(prepared_films), buckets=(4, 8)).load().train, 5, 0)
    lengths = {next(iterator)["input_ids"].shape[1] for _ in range(14)}
    assert len(lengths) > 1
    assert lengths <= {4, 8, 12}
    assert data.tokenizer == wordpiece
    assert len(data.train) == 70
    for index in (0, 13, 69):
        row, example = film_rows["train"].at(index).values, data.train[index]
        ids = wordpiece.backend.encode(row["text"]).ids[:12]
        assert example["input_ids"][: len(ids)].tolist() == ids
        assert example["attention_mask"].tolist() == [1] * len(ids) + [0] * (len(example["input_ids"]) - len(ids))
        assert example["labels"] == row["label"]
    (batch,) = headjax.evaluation_batches(data.validation, 15)
    assert batch["labels"].tolist() == [row.values["label"] for row in film_rows["validation"].rows()]
    assert data.info["train"]["examples"] == 70
    assert data.info["labels"] == ["bad", "good"]
    found = open_prepared(prepared_films)
    assert len(found.of("train")) > 3
    assert found.settings.tokenizer == wordpiece.fingerprint
    data = json.loads((prepared_films / "manifest.json").read_text())
    assert data["form"] == {"kind": "labelled", "length": 12, "pairs": False, "classes": ["bad", "good"], "scale": 1.0}


def test_a_full_disk_keeps_whole_shards_and_the_rest_resumes(prepared_films, run, tmp_path, monkeypatch):
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
        with pytest.raises(headjax.DataError, match=r"train-00004.array_record: .*No space left"):
            run(out)
    assert {file.name for file in out.glob("*.array_record*")} == {f"train-{i:05d}.array_record" for i in range(4)}
    with pytest.raises(headjax.DataError, match="films: "):
        headjax.data.DataConfig(task=str(out)).load()
    kept = {file.name: file.stat().st_mtime_ns for file in out.glob("*.array_record")}
    done = run(out)
    assert done.written == len(done.shards) - 4
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    assert_same(out, prepared_films)


def test_a_finished_folder_is_unfinished_before_its_shards_change(prepared_films, film_rows, run, tmp_path):
    """A reader gets the old rows or the new ones, or is told to wait; what changes is no longer vouched for."""
    out = shutil.copytree(prepared_films, tmp_path / "films")
    write = store.write_shard

    def stopped(*shard):
        assert open_prepared(out).waiting
        write(*shard)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "write_shard", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(out, train=changed_rows(film_rows, 0))
    with pytest.raises(headjax.DataError, match="films: "):
        headjax.data.DataConfig(task=str(out)).load()
    assert run(out).written == 1  # the old rows again
    assert_same(out, prepared_films)
    assert run(out, train=changed_rows(film_rows, 0)).written == 1
    assert headjax.data.DataConfig(task=str(out)).load().train[0]["labels"] == 1
    fewer = run(out, train=RowSource.of([*film_rows["train"].rows()][:5]))
    assert fewer.counts("train")["examples"] == len(headjax.data.DataConfig(task=str(out)).load().train) == 5


def test_shards_are_written_while_rows_are_still_read(run, tmp_path):
    shard, seen = tmp_path / "films" / "train-00000.array_record", []

    def reading(share):
        for row in rows(70):
            seen.append(shard.exists())
            yield row

    run(tmp_path / "films", train=RowSource(reading))
    assert 0 < seen.index(True) < 20


def test_bad_rows_name_their_place(run, tmp_path):
    def attempt(**values):
        bad = [*rows(40), Row("film.tsv: row 41", {"text": "a film", "label": 0} | values)]
        run(tmp_path / "films", train=RowSource.of(bad))

    for values, field in (
        ({"label": "goood"}, "'goood'"),
        ({"label": 2}, "label"),
        ({"label": 0.5}, "'0.5'"),
        ({"text": " "}, "text"),
    ):
        with pytest.raises(headjax.DataError, match=rf"^film.tsv: row 41: .*{field}"):
            attempt(**values)
    assert len(list((tmp_path / "films").glob("train-*.array_record"))) == 2  # those before the bad row are kept
    attempt()
    with pytest.raises(headjax.DataError, match=r"^films: the split validation "):
        run(tmp_path / "empty", validation=RowSource.of([]))
    with pytest.raises(headjax.DataError, match=r"^film.tsv: row 41"):
        run(tmp_path / "none", train=RowSource.of([Row("film.tsv: row 41", {"text": " ", "label": 0})]))


def test_a_folder_of_something_else(prepared_films, film_rows, run, wordpiece, tmp_path):
    with pytest.raises(headjax.DataError, match=r"films: .*length was 12 and is 10 now"):
        run(prepared_films, form=dataclasses.replace(FORM, length=10))
    with pytest.raises(headjax.DataError, match="tokenizer was"):
        prepare("films", FORM, film_rows, headjax.byte_tokenizer(), prepared_films, shard_bytes=SIZE)
    (tmp_path / "notes.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(headjax.DataError, match=f"^{place}: not empty"):
            run(place)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(headjax.ConfigError, match=r"^seed: "):
        prepare("films", FORM, film_rows, wordpiece, tmp_path / "seed", seed=-1)
    with pytest.raises(headjax.DataError, match="eos_token"):
        prepare("films", LanguageForm(), film_rows, wordpiece, tmp_path / "text")


def texts_of(folder):
    """The examples to train on, without an order."""
    source = headjax.data.DataConfig(task=str(folder)).load().train
    return sorted(source[index]["input_ids"].tobytes() for index in range(len(source)))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_hosts_read_their_shares_and_write_all_examples_together(order, run, prepared_films, tmp_path):
    read = []

    def reading(share):
        mine = rows(70)[share.index :: share.count]
        read.extend(mine)
        return mine

    written = [run(tmp_path / "films", index, 3, train=RowSource(reading)) for index in order]
    assert [one.waiting for one in written] == [tuple(sorted(order[1:])), order[2:], ()]
    assert len(read) == 70
    assert texts_of(tmp_path / "films") == texts_of(prepared_films)
    with pytest.raises(headjax.DataError, match="hosts was 3 and is 2 now"):
        run(tmp_path / "films", 0, 2)


def test_a_stopped_host_goes_on_and_the_others_never_notice(run, prepared_films, tmp_path):
    out = tmp_path / "films"

    def stopping(share):
        yield from rows(70)[share.index : 55 : share.count]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(out, 1, 2, train=RowSource(stopping))
    kept = {file: file.stat().st_mtime_ns for file in out.glob("*.array_record")}
    assert run(out, 0, 2).waiting == (1,)
    with pytest.raises(headjax.DataError, match=r"films: not prepared to the end \(host 1\)"):
        headjax.data.DataConfig(task=str(out)).load()
    done = run(out, 1, 2)
    assert 0 < done.written < len(done.shards)
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    assert texts_of(out) == texts_of(prepared_films)


def test_a_bucket_gets_the_shards_that_a_folder_gets(run, prepared_films, bucket):
    out = f"{bucket}/films"
    run(path_of(out))
    assert_same(path_of(out), prepared_films)
    assert run(path_of(out)).written == 0
    here, there = (headjax.data.DataConfig(task=str(place)).load() for place in (prepared_films, out))
    for index in (0, 13, 69):
        np.testing.assert_array_equal(there.train[index]["input_ids"], here.train[index]["input_ids"])
    assert (here.threads, there.threads) == (0, READ_AHEAD)
    batches = [next(train_iterator(data.train, 10, 0, threads=2))["input_ids"] for data in (here, there)]
    np.testing.assert_array_equal(*batches)
    (path_of(out) / "train-00000.array_record").unlink()
    with pytest.raises(headjax.DataError, match=rf"^{out}/train-00000.array_record: "):
        headjax.data.DataConfig(task=out).load()
