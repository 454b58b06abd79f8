from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from headjax.core import files
from headjax.core.errors import ConfigError, DataError
from headjax.core.paths import path_of
from headjax.data import PreparedData
from headjax.data import prepare as preparing
from headjax.data.forms import LanguageForm
from headjax.data.prepare import prepare
from headjax.data.prepared import MANIFEST, READ_AHEAD, UNFINISHED, read_manifest
from headjax.data.rows import Row, RowSource
from headjax.data.stream import evaluation_batches, train_iterator
from headjax.mesh.distributed import BatchShare
from headjax.tokenizers.learned import byte_tokenizer
from tests.data.films import FORM, SIZE, rows
from tests.data.vocabulary import write_vocabulary


def contents(folder):
    """Every shard's bytes, and the manifest."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}


def test_examples_are_those_of_the_form(prepared_films, film_rows, wordpiece):
    data = PreparedData(path=str(prepared_films)).load()
    assert data.tokenizer == wordpiece
    assert len(data.train) == 70
    for index in (0, 13, 69):
        row, example = film_rows["train"].rows()[index].values, data.train[index]
        ids = wordpiece.backend.encode(row["text"]).ids[:12]
        assert example["input_ids"][: len(ids)].tolist() == ids
        assert example["attention_mask"].tolist() == [1] * len(ids) + [0] * (len(example["input_ids"]) - len(ids))
        assert example["labels"] == row["label"]
    (batch,) = evaluation_batches(data.validation, 15)
    assert batch["labels"].tolist() == [row.values["label"] for row in film_rows["validation"].rows()]
    assert data.info["train"]["examples"] == 70
    assert data.info["labels"] == ["bad", "good"]


def test_manifest(prepared_films, wordpiece):
    manifest = read_manifest(prepared_films)
    assert len(manifest.of("train")) > 3
    assert manifest.tokenizer == wordpiece.fingerprint
    assert manifest.versions["headjax"]
    data = json.loads((prepared_films / "manifest.json").read_text())
    assert data["form"] == {"kind": "labelled", "length": 12, "pairs": False, "classes": ["bad", "good"]}


def test_training_reads_every_example_once_an_epoch_and_resumes(prepared_films):
    def read(iterator, count):
        return [next(iterator)["input_ids"] for _ in range(count)]

    source = PreparedData(path=str(prepared_films)).load().train
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


def test_buckets_pad_less(prepared_films):
    data = PreparedData(path=str(prepared_films), buckets=(4, 8)).load()
    lengths = {
        next(iterator)["input_ids"].shape[1] for iterator in [train_iterator(data.train, 5, 0)] for _ in range(14)
    }
    assert len(lengths) > 1
    assert lengths <= {4, 8, 12}


def test_prepared_again_nothing_is_written(prepared_films, film_rows, wordpiece, monkeypatch):
    before = contents(prepared_films)
    monkeypatch.setattr(preparing, "write_shard", None)
    assert prepare("films", FORM, film_rows, wordpiece, prepared_films, shard_bytes=SIZE).written == 0
    assert contents(prepared_films) == before


def test_a_full_disk_keeps_whole_shards_and_the_rest_resumes(
    prepared_films, film_rows, wordpiece, tmp_path, monkeypatch
):
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
            prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE)
    assert {file.name for file in out.glob("*.array_record*")} == {f"train-{i:05d}.array_record" for i in range(4)}
    with pytest.raises(DataError, match="films: not prepared to the end; the same `headjax prepare` goes on"):
        PreparedData(path=str(out)).load()
    kept = {file.name: file.stat().st_mtime_ns for file in out.glob("*.array_record")}
    done = prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE)
    assert done.written == len(done.manifest.shards) - 4
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    assert contents(out) == contents(prepared_films)


def test_a_process_that_is_killed_at_its_first_files_is_followed_by_the_same_call(
    prepared_films, film_rows, wordpiece, tmp_path, monkeypatch
):
    """It leaves a manifest that has no name yet, a vocabulary without its last file, or a shard without a name."""
    out = tmp_path / "films"
    out.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(files, "_NONCE", "00000000")
        left = [files.hidden(out / name, "new") for name in (UNFINISHED, "train-00002.array_record")]
    for file in left:
        file.write_bytes(b"half of")
    with pytest.raises(DataError, match="not empty, and not prepared"):  # that of a shard alone says nothing
        prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE)
    left[1].unlink()
    left[0].write_bytes(b"half of")
    prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE)
    assert contents(out) == contents(prepared_films)

    (out / MANIFEST).rename(out / UNFINISHED)
    left[1].write_bytes(b"half of")
    for name in ("train-00002.array_record", "tokenizer/special_tokens_map.json"):
        (out / name).unlink()
    prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE)
    assert contents(out) == contents(prepared_films)
    assert PreparedData(path=str(out)).load().tokenizer == wordpiece


def test_a_finished_folder_is_unfinished_before_its_shards_change(prepared_films, film_rows, wordpiece, tmp_path):
    """A reader gets the old rows or the new ones, or is told to wait."""
    out = tmp_path / "films"
    shutil.copytree(prepared_films, out)
    seen = []
    write = preparing.write_shard

    def watched(path, *rest):
        seen.append((out / MANIFEST).exists())
        with pytest.raises(DataError, match="not prepared to the end"):
            PreparedData(path=str(out)).load()
        write(path, *rest)

    changed = [*film_rows["train"].rows()]
    changed[0] = Row("elsewhere", {"text": "the dull dull film", "label": "good"})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(preparing, "write_shard", watched)
        done = prepare("films", FORM, film_rows | {"train": RowSource.of(changed)}, wordpiece, out, shard_bytes=SIZE)
    assert done.written == len(seen) >= 1
    assert not any(seen)
    assert PreparedData(path=str(out)).load().train[0]["labels"] == 1


def test_shards_of_other_processes_are_gone_on_from(film_rows, wordpiece, tmp_path, monkeypatch):
    """One that failed while another process had written a later shard leaves a folder that the same call takes."""
    out = tmp_path / "films"
    encode = preparing.encode_shard

    def fails(form, tokenizer, work):
        encode(form, tokenizer, work._replace(path=work.path.with_name("train-00001.array_record")))
        raise DataError("a bad row")

    with monkeypatch.context() as patched:
        patched.setattr(preparing, "encode_shard", fails)
        with pytest.raises(DataError, match="a bad row"):
            prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE)
    assert prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE).written > 3


ENDLESS = """
import sys, time
from headjax.data.prepare import prepare
from headjax.data.rows import RowSource
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests.data.films import FORM, SIZE, rows
from tests.data.vocabulary import write_vocabulary

def reading():
    yield from rows(40)
    print("reading", flush=True)
    while True:
        time.sleep(0.1)

try:
    prepare("films", FORM, {"train": RowSource(reading)}, wordpiece_tokenizer(sys.argv[1]), sys.argv[2],
            shard_bytes=SIZE, processes=2)
except KeyboardInterrupt:
    sys.exit(130)
"""


def never_interrupted(worker):
    """Return whether a process holds SIGINT back or ignores it, which it has to from its first moment on."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{worker}/status").read_text().splitlines())
    return any(int(status[field], 16) & 1 << signal.SIGINT - 1 for field in ("SigBlk", "SigIgn"))


def children(process):
    return [int(number) for number in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.mark.whole
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the children of a process in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them(number, prepared_films, film_rows, wordpiece, tmp_path):
    """Ctrl-C, which reaches all of them, says nothing; a process that is killed takes the others along."""
    out, vocabulary = tmp_path / "films", write_vocabulary(tmp_path)
    command = [sys.executable, "-c", ENDLESS, str(vocabulary), str(out)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as first:
        try:
            assert first.stdout.readline() == b"reading\n"
            started = children(first)
            assert len(started) >= 3  # two that encode, and Python's own that tracks resources
            assert all(map(never_interrupted, started))
            os.killpg(first.pid, number) if number == signal.SIGINT else first.send_signal(number)
            _, said = first.communicate(timeout=60)  # which ends with the last of the processes
        except BaseException:
            os.killpg(first.pid, signal.SIGKILL)  # without which the end of the block waits for them
            raise
    assert first.returncode == (130 if number == signal.SIGINT else -number)
    assert number != signal.SIGINT or said == b""
    end = time.monotonic() + 30
    while any(files.process_lives(worker) for worker in started):
        assert time.monotonic() < end
        time.sleep(0.05)
    prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE)
    assert contents(out) == contents(prepared_films)


def test_shards_are_written_while_rows_are_still_read(wordpiece, film_rows, tmp_path):
    shard, seen = tmp_path / "films" / "train-00000.array_record", []

    def reading():
        for row in rows(70):
            seen.append(shard.exists())
            yield row

    prepare("films", FORM, film_rows | {"train": RowSource(reading)}, wordpiece, tmp_path / "films", shard_bytes=SIZE)
    assert 0 < seen.index(True) < 20


def test_several_processes_write_the_same(prepared_films, film_rows, wordpiece, tmp_path):
    prepare("films", FORM, film_rows, wordpiece, tmp_path / "films", shard_bytes=SIZE, processes=2)
    assert contents(tmp_path / "films") == contents(prepared_films)


def test_only_shards_whose_rows_changed_are_written_again(prepared_films, film_rows, wordpiece, tmp_path):
    out = tmp_path / "films"
    changed = [*film_rows["train"].rows()]
    changed[-1] = Row("elsewhere", {"text": "the dull dull film", "label": "good"})
    prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE)
    done = prepare("films", FORM, film_rows | {"train": RowSource.of(changed)}, wordpiece, out, shard_bytes=SIZE)
    assert done.written == 1
    assert PreparedData(path=str(out)).load().train[69]["labels"] == 1
    fewer = prepare("films", FORM, film_rows | {"train": RowSource.of(changed[:5])}, wordpiece, out, shard_bytes=SIZE)
    assert {file.name for file in out.glob("train*")} == {"train-00000.array_record", "train-00000.npy"}
    assert fewer.manifest.counts("train")["examples"] == 5


def test_bad_rows_name_their_place(film_rows, wordpiece, tmp_path):
    def attempt(**values):
        bad = RowSource.of([*rows(40), Row("film.tsv: line 41", {"text": "a film", "label": 0} | values)])
        prepare("films", FORM, film_rows | {"train": bad}, wordpiece, tmp_path / "films", shard_bytes=SIZE)

    with pytest.raises(DataError, match=r"^film.tsv: line 41: unknown label 'goood'; did you mean 'good'\?$"):
        attempt(label="goood")
    with pytest.raises(DataError, match=r"^film.tsv: line 41: unknown label '2'"):
        attempt(label=2)
    with pytest.raises(DataError, match=r"^film.tsv: line 41: text is blank$"):
        attempt(text=" ")
    assert len(list((tmp_path / "films").glob("train-*.array_record"))) == 2  # those before the bad row are kept
    attempt()
    with pytest.raises(DataError, match=r"^films: the split validation has no examples$"):
        prepare("films", FORM, film_rows | {"validation": RowSource.of([])}, wordpiece, tmp_path / "empty")


def test_a_folder_of_something_else(prepared_films, film_rows, wordpiece, tmp_path):
    with pytest.raises(DataError, match=r"films: holds another preparation, length was 12 and is 10 now"):
        prepare("films", dataclasses.replace(FORM, length=10), film_rows, wordpiece, prepared_films, shard_bytes=SIZE)
    with pytest.raises(DataError, match="tokenizer was"):
        prepare("films", FORM, film_rows, byte_tokenizer(), prepared_films, shard_bytes=SIZE)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="not empty, and not prepared by this command"):
        prepare("films", FORM, film_rows, wordpiece, tmp_path)
    with pytest.raises(DataError, match=r"notes.txt: not empty, and not prepared"):
        prepare("films", FORM, film_rows, wordpiece, tmp_path / "notes.txt")
    with pytest.raises(ConfigError, match=r"^seed: must not be negative, got -1"):
        prepare("films", FORM, film_rows, wordpiece, tmp_path / "seed", seed=-1)
    with pytest.raises(DataError, match="it has no eos_token"):
        prepare("films", LanguageForm(), film_rows, wordpiece, tmp_path / "text")


def test_a_bucket_gets_the_shards_that_a_folder_gets(prepared_films, film_rows, wordpiece, bucket):
    out = f"{bucket}/films"
    first = prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE)
    assert {name: data for name, data in contents(path_of(out)).items() if name.endswith("record")} == {
        name: data for name, data in contents(prepared_films).items() if name.endswith("record")
    }
    again = prepare("films", FORM, film_rows, wordpiece, out, shard_bytes=SIZE)
    assert (again.written, again.manifest) == (0, first.manifest)
    here, there = (PreparedData(path=str(place)).load() for place in (prepared_films, out))
    for index in (0, 13, 69):
        np.testing.assert_array_equal(there.train[index]["input_ids"], here.train[index]["input_ids"])
    assert (here.threads, there.threads) == (0, READ_AHEAD)
    batches = [next(train_iterator(data.train, 10, 0, threads=2))["input_ids"] for data in (here, there)]
    np.testing.assert_array_equal(*batches)
    (path_of(out) / "train-00000.array_record").unlink()
    with pytest.raises(DataError, match=rf"^{out}/train-00000.array_record: missing; remove it and prepare again"):
        PreparedData(path=out).load()
