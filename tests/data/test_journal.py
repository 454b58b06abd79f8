"""Several hosts prepare one folder: the result, interruptions, and hosts that do not fit."""

from __future__ import annotations

import dataclasses
import itertools
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from headjax.core.errors import DataError, HeadjaxError
from headjax.core.lock import FolderLock
from headjax.core.paths import file_sizes, path_of
from headjax.data import PreparedData
from headjax.data.journal import Host
from headjax.data.prepare import prepare
from headjax.data.prepared import HOSTS, hosts_of, is_prepared, read_manifest
from headjax.data.rows import Row, RowSource
from tests.data.films import FORM, SIZE, rows


@pytest.fixture
def run(film_rows, wordpiece):
    """Prepare the films as one of several hosts."""

    def prepared(out, index, count, form=FORM, **splits):
        return prepare("films", form, film_rows | splits, wordpiece, out, shard_bytes=SIZE, host=Host(index, count))

    return prepared


def contents(folder):
    """The bytes of every file, by its path."""
    return {name: (folder / name).read_bytes() for name in file_sizes(folder)}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_hosts_write_together_what_one_process_writes(order, run, prepared_films, tmp_path):
    first, second, last = (run(tmp_path / "films", index, 3) for index in order)
    assert first.waiting == tuple(sorted(order[1:]))
    assert second.waiting == order[2:]
    assert last.waiting == ()
    shards = len(last.manifest.shards)
    assert first.written + second.written + last.written == shards
    assert max(len(first.manifest.shards), len(second.manifest.shards)) <= shards // 3 + 2
    assert contents(tmp_path / "films") == contents(prepared_films)


def test_hosts_write_at_the_same_time(run, prepared_films, tmp_path):
    for attempt in range(10):
        out = tmp_path / str(attempt)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(run, itertools.repeat(out), range(8), itertools.repeat(8)))
        assert any(not each.waiting for each in found)
        assert contents(out) == contents(prepared_films)


def test_a_host_that_is_just_beginning_is_no_other_content(run, prepared_films, tmp_path):
    out = tmp_path / "films"
    (out / HOSTS).mkdir(parents=True)  # what the other host makes first
    assert run(out, 0, 2).waiting == (1,)
    assert run(out, 1, 2).waiting == ()
    assert contents(out) == contents(prepared_films)


@pytest.mark.parametrize("look", [0, 1])
def test_a_host_that_begins_while_the_folder_is_looked_at_is_no_other_content(
    run, prepared_films, tmp_path, monkeypatch, look
):
    out = tmp_path / "films"
    looks = itertools.count()

    def hosts(folder):
        found = hosts_of(folder)
        if next(looks) == look:
            with monkeypatch.context() as patch:
                patch.setattr("headjax.data.journal.hosts_of", hosts_of)
                assert run(out, 1, 2).waiting == (0,)
        return found

    monkeypatch.setattr("headjax.data.journal.hosts_of", hosts)
    assert run(out, 0, 2).waiting == ()
    assert contents(out) == contents(prepared_films)


@pytest.mark.parametrize("entry", ["notes.txt", f"{HOSTS}/notes.txt"])
def test_other_content_is_refused(run, tmp_path, entry):
    file = tmp_path / "films" / entry
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(DataError, match=r"films: not empty, and not prepared by this command; choose another folder$"):
        run(tmp_path / "films", 0, 2)
    assert file.read_text() == "mine"


def test_hosts_write_to_a_bucket(run, prepared_films, bucket):
    out = path_of(bucket) / "films"
    assert run(out, 1, 2).waiting == (0,)
    with pytest.raises(DataError, match=rf"^{out}: not prepared to the end; of 2 hosts these have not finished: 0$"):
        PreparedData(path=str(out)).load()
    assert run(out, 0, 2).waiting == ()
    assert contents(out) == contents(prepared_films)


def test_more_hosts_than_shards(run, prepared_films, tmp_path):
    found = [run(tmp_path / "films", index, 20) for index in range(20)]
    assert found[18].manifest.shards == ()
    assert found[18].waiting == (19,)
    assert contents(tmp_path / "films") == contents(prepared_films)


INTERRUPTED = """
import sys, time
from headjax.data.journal import Host
from headjax.data.prepare import prepare
from headjax.data.rows import RowSource
from headjax.tokenizers.tokenizer import Tokenizer
from tests.data.films import FORM, SIZE, rows

def reading():
    yield from rows(70)[:55]
    print("reached", flush=True)
    time.sleep(600)

splits = {"train": RowSource(reading), "validation": RowSource.of(rows(15, seed=1))}
prepare("films", FORM, splits, Tokenizer.load(sys.argv[1]), sys.argv[2], shard_bytes=SIZE, host=Host(1, 2))
"""


def test_a_killed_host_goes_on_and_the_others_never_notice(run, prepared_films, tmp_path):
    out = tmp_path / "films"
    words = [sys.executable, "-c", INTERRUPTED, str(prepared_films / "tokenizer"), str(out)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout.readline() == "reached\n"
        assert run(out, 0, 2).waiting == (1,)
        killed.send_signal(signal.SIGKILL)
    kept = {file: file.stat().st_mtime_ns for file in out.glob("*.array_record")}
    assert not (out / "hosts" / "1-of-2" / "part.json").exists()
    done = run(out, 1, 2)
    assert done.waiting == ()
    assert 0 < done.written == len(done.manifest.shards) - len(kept)
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    assert contents(out) == contents(prepared_films)


def test_a_finished_folder_prepared_again(run, film_rows, prepared_films, tmp_path):
    out = tmp_path / "films"
    for index in range(2):
        run(out, index, 2)
    again = [run(out, index, 2) for index in (1, 0)]
    assert [(each.written, each.waiting) for each in again] == [(0, ()), (0, ())]
    assert contents(out) == contents(prepared_films)
    changed = [*film_rows["train"].rows()]
    changed[-1] = Row("elsewhere", {"text": "the dull dull film", "label": "good"})
    last = len(read_manifest(out).of("train")) - 1  # its owner comes second
    found = [run(out, (last + after) % 2, 2, train=RowSource.of(changed)) for after in (1, 0)]
    assert [(each.written, each.waiting) for each in found] == [(0, (last % 2,)), (1, ())]
    assert PreparedData(path=str(out)).load().train[69]["labels"] == 1
    changed[0] = Row("elsewhere", {"text": changed[0].values["text"], "label": "good"})
    found = [run(out, index, 2, train=RowSource.of(changed)) for index in range(2)]
    assert [(each.written, each.waiting) for each in found] == [(1, (1,)), (0, ())]
    assert not (out / "hosts").exists()


def test_hosts_that_do_not_fit(run, film_rows, wordpiece, prepared_films, tmp_path):
    out = tmp_path / "films"
    run(out, 0, 2)
    assert is_prepared(out)
    held = FolderLock(out / "hosts" / "1-of-2")
    with held, pytest.raises(HeadjaxError, match=rf"^{out}/hosts/1-of-2: in use by process \d+ of "):
        run(out, 1, 2)
    shorter = dataclasses.replace(FORM, length=10)
    with pytest.raises(DataError, match=r"hosts/0-of-2: holds another preparation, length was 12 and is 10 now"):
        run(out, 1, 2, form=shorter)
    with pytest.raises(DataError, match=rf"^{out}: 2 hosts prepare it .* remove {out}/hosts to go on with --host I/3$"):
        run(out, 1, 3)
    with pytest.raises(DataError, match=rf"^{out}: 2 hosts prepare it .* remove {out}/hosts to go on without --host$"):
        run(out, 0, 1)
    other = RowSource.of([*film_rows["train"].rows()][:-1])
    with pytest.raises(DataError, match=r"hosts 0 and 1 have read different rows, first of train-0000\d.array_record;"):
        run(out, 1, 2, train=other)
    with pytest.raises(DataError, match=r"^films: the split validation has no examples$"):
        run(out, 1, 2, validation=RowSource.of([]))
    assert run(out, 1, 2).waiting == ()
    assert contents(out) == contents(prepared_films)


def test_a_folder_begun_without_hosts(run, film_rows, wordpiece, tmp_path):
    def interrupted():
        yield from rows(70)[:40]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "films", 0, 1, train=RowSource(interrupted))
    with pytest.raises(DataError, match="films: begun without --host; go on without it, or choose another folder"):
        run(tmp_path / "films", 0, 2)


def test_a_host_that_writes_nothing_leaves_nothing(run, tmp_path):
    bad = RowSource.of([Row("film.tsv: line 1", {"text": " ", "label": 0})])
    with pytest.raises(DataError, match=r"^film.tsv: line 1: text is blank$"):
        run(tmp_path / "films", 0, 2, train=bad)
    assert not (tmp_path / "films").exists()
