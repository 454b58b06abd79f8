"""One process at a time holds a folder; a lock left by one that was killed is taken over."""

import errno
import json
import os
import socket
import threading
import time

import pytest

from headjax.core.errors import HeadjaxError
from headjax.storage.lock import FORGOTTEN, LOCK, FolderLock
from headjax.storage.paths import path_of

OTHER = {"owner": "ann", "host": "elsewhere", "process": 7, "token": "00", "began": 0.0}


@pytest.fixture(params=["disk", "bucket"])
def folder(request, tmp_path):
    """A folder to lock, that is not there yet."""
    return tmp_path / "run" if request.param == "disk" else path_of(request.getfixturevalue("bucket")) / "run"


def holder(folder):
    return json.loads((folder / LOCK).read_text())


def write(folder, **fields):
    """The lock of another process."""
    folder.mkdir(exist_ok=True)
    (folder / LOCK).write_text(json.dumps(OTHER | {"heartbeat": time.time()} | fields))


def quick(folder):
    return FolderLock(folder, beat=0.05, silence=0.3)


def wait_until(ready):
    end = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_lock_names_its_holder_is_renewed_and_is_gone_afterwards(folder):
    with quick(folder):
        held = holder(folder)
        assert (held["host"], held["process"]) == (socket.gethostname(), os.getpid())
        assert held["owner"]
        with pytest.raises(HeadjaxError, match=rf"run: in use by process {os.getpid()} of "):
            quick(folder).acquire()
        wait_until(lambda: holder(folder)["heartbeat"] != held["heartbeat"])
        assert holder(folder)["token"] == held["token"]
    assert list(folder.rglob("*")) == []


def test_a_lock_is_there_with_its_holder_or_not_at_all(tmp_path, monkeypatch):
    """An empty one, as of a full disk, would be watched for a minute."""

    def full(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(FolderLock, "_content", full)
        with pytest.raises(HeadjaxError, match=r"lock\.json: "):
            FolderLock(tmp_path).acquire()
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_hard_links_has_locks(tmp_path, monkeypatch):
    def refused(source, target):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    with quick(tmp_path), pytest.raises(HeadjaxError, match="in use by process"):
        FolderLock(tmp_path).acquire()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"host": socket.gethostname(), "process": 2**22 + 1},
        {"host": socket.gethostname(), "process": os.getpid()},
        {"heartbeat": 0.0},
        {"heartbeat": time.time() - FORGOTTEN - 100},
        {},
    ],
    ids=["killed here", "an earlier process of this number", "no clock", "long ago", "silent elsewhere"],
)
def test_a_stale_lock_is_taken_over(fields, tmp_path):
    write(tmp_path, **fields)
    with quick(tmp_path) as lock:
        assert holder(tmp_path)["process"] == os.getpid()
        lock.check()
    assert not (tmp_path / LOCK).exists()


@pytest.mark.parametrize("process", [1, os.getppid()], ids=["another user's", "an own one"])
def test_a_living_process_of_this_host_keeps_its_lock(process, tmp_path):
    write(tmp_path, host=socket.gethostname(), process=process)
    with pytest.raises(HeadjaxError, match=f"in use by process {process} of ann on"):
        FolderLock(tmp_path).acquire()


def test_a_living_process_elsewhere_keeps_its_lock(tmp_path):
    """Whatever its clock says."""
    stop = threading.Event()
    write(tmp_path, heartbeat=time.time() - 300)

    def live():
        while not stop.wait(0.05):
            write(tmp_path, heartbeat=time.time() - 300)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        with pytest.raises(HeadjaxError, match="in use by process 7 of ann on elsewhere"):
            FolderLock(tmp_path, beat=0.05, silence=30.0).acquire()
    finally:
        stop.set()
        thread.join()


def test_of_many_that_take_a_lock_over_one_has_it_and_learns_when_it_lost_it(folder):
    write(folder, heartbeat=0.0)
    locks, refused = [quick(folder) for _ in range(5)], {}

    def acquire(lock):
        try:
            lock.acquire()
        except HeadjaxError as error:
            refused[lock] = str(error)

    threads = [threading.Thread(target=acquire, args=[lock]) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ["in use by" in message for message in refused.values()] == [True] * 4
    write(folder)
    (owner,) = (lock for lock in locks if lock not in refused)
    owner._thread.join(60)  # which ends once it has read the file
    with pytest.raises(HeadjaxError, match="taken over by process 7 of ann on elsewhere"):
        owner.check()
    for lock in locks:
        lock.release()
    assert holder(folder)["owner"] == "ann"


def test_a_lock_that_cannot_be_written_is_one_line(tmp_path, bucket):
    (tmp_path / "file").write_text("")
    (tmp_path / "run" / LOCK).mkdir(parents=True)
    for folder in (tmp_path / "file", tmp_path / "run", path_of("gs://none-such/run")):
        with pytest.raises(HeadjaxError, match=rf"^{folder}/lock\.json: "):
            FolderLock(folder).acquire()


def test_a_lock_that_is_just_being_written_is_one(tmp_path):
    """And one that was left so, long ago, is none."""
    (tmp_path / LOCK).write_text("")
    refused = FolderLock(tmp_path, beat=0.05, silence=60.0)
    timer = threading.Timer(0.2, lambda: write(tmp_path))
    timer.start()
    with pytest.raises(HeadjaxError, match="in use by"):
        refused.acquire()
    timer.join()
    (tmp_path / LOCK).write_text("")
    os.utime(tmp_path / LOCK, (0, 0))
    with quick(tmp_path):
        assert holder(tmp_path)["process"] == os.getpid()
