"""One process at a time holds a folder; a lock left by one that was killed is taken over."""

import errno
import json
import os
import socket
import threading
import time

import pytest

from headjax.core.errors import HeadjaxError
from headjax.core.lock import FORGOTTEN, LOCK, FolderLock
from headjax.core.paths import path_of

OTHER = {"owner": "ann", "host": "elsewhere", "process": 7, "token": "00", "began": 0.0}


def holder(folder):
    return json.loads((folder / LOCK).read_text())


def write(folder, **fields):
    """The lock of another process."""
    (folder / LOCK).write_text(json.dumps(OTHER | {"heartbeat": time.time()} | fields))


def quick(folder):
    return FolderLock(folder, beat=0.05, silence=0.3)


def test_a_lock_names_its_holder_and_is_gone_afterwards(tmp_path):
    with FolderLock(tmp_path / "run"):
        held = holder(tmp_path / "run")
        assert (held["host"], held["process"]) == (socket.gethostname(), os.getpid())
        assert held["owner"]
        with pytest.raises(HeadjaxError, match=rf"run: in use by process {os.getpid()} of .* end that run or choose"):
            FolderLock(tmp_path / "run").acquire()
    assert list((tmp_path / "run").iterdir()) == []


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


def test_the_heartbeat_goes_on(tmp_path):
    with quick(tmp_path):
        first, end = holder(tmp_path)["heartbeat"], time.monotonic() + 60
        while holder(tmp_path)["heartbeat"] == first:
            assert time.monotonic() < end
            time.sleep(0.01)


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


def test_a_living_process_of_this_host_keeps_its_lock(tmp_path):
    write(tmp_path, host=socket.gethostname(), process=os.getppid())
    with pytest.raises(HeadjaxError, match=f"in use by process {os.getppid()} of ann on"):
        FolderLock(tmp_path).acquire()


def test_a_living_process_elsewhere_keeps_its_lock(tmp_path):
    """Whatever its clock says."""
    stop, began = threading.Event(), time.time() - 300
    write(tmp_path, heartbeat=began)

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


def test_a_holder_learns_that_it_lost_the_lock(tmp_path):
    with quick(tmp_path) as lock:
        write(tmp_path)
        lock._thread.join(60)  # which ends once it has read the file
        with pytest.raises(HeadjaxError, match="taken over by process 7 of ann on elsewhere"):
            lock.check()
    assert holder(tmp_path)["owner"] == "ann"


def test_of_many_that_take_a_lock_over_one_has_it(tmp_path):
    write(tmp_path, heartbeat=0.0)
    locks = [quick(tmp_path) for _ in range(8)]
    refused = []

    def acquire(lock):
        try:
            lock.acquire()
        except HeadjaxError:
            refused.append(lock)

    threads = [threading.Thread(target=acquire, args=[lock]) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7
    for lock in locks:
        lock.release()
    assert not (tmp_path / LOCK).exists()


def test_a_lock_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadjaxError, match=r"lock\.json: "):
        FolderLock(tmp_path / "file").acquire()
    (tmp_path / "run" / LOCK).mkdir(parents=True)
    with pytest.raises(HeadjaxError, match=r"lock\.json: "):
        FolderLock(tmp_path / "run").acquire()


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


def test_a_lock_in_a_bucket_is_held_renewed_and_given_back(bucket):
    folder = path_of(bucket) / "run"
    with quick(folder):
        held = holder(folder)
        with pytest.raises(HeadjaxError, match=r"run: "):
            quick(folder).acquire()
        end = time.monotonic() + 60
        while holder(folder)["heartbeat"] == held["heartbeat"]:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert holder(folder)["token"] == held["token"]
    assert not folder.exists()


def test_a_lock_in_a_bucket_is_taken_over_by_one_of_several(bucket):
    folder = path_of(bucket) / "run"
    write(folder, heartbeat=0.0)
    locks, refusals = [quick(folder) for _ in range(4)], []

    def take(lock):
        try:
            lock.acquire()
        except HeadjaxError as error:
            refusals.append(str(error))

    threads = [threading.Thread(target=take, args=(lock,)) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refusals) == 3
    assert all("in use by" in refusal for refusal in refusals)
    write(folder)
    owner = next(lock for lock in locks if lock._token not in str(refusals) and lock._thread.is_alive())
    end = time.monotonic() + 60
    while owner._lost is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    with pytest.raises(HeadjaxError, match="taken over by process 7 of ann on elsewhere"):
        owner.check()
    owner.release()
    assert holder(folder)["owner"] == "ann"


def test_a_bucket_that_does_not_exist_takes_no_lock(bucket):
    with pytest.raises(HeadjaxError, match=r"^gs://none-such/run/lock.json: cannot be written \(no such bucket"):
        FolderLock(path_of("gs://none-such/run")).acquire()
