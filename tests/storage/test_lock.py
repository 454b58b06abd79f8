"""One process at a time holds a folder, and a killed one holds nothing."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import headjax
from headjax.storage.directories import hold
from tests.buckets import path_of

HOLDER = """
import sys, time
from pathlib import Path
from headjax.storage.directories import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_held_folder_is_refused_until_its_holder_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as holder:
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(headjax.HeadjaxError, match=rf"^{tmp_path}/run: in use by another process"),
            hold(tmp_path / "run"),
        ):
            pass
        holder.send_signal(signal.SIGKILL)
    with (
        hold(tmp_path / "run"),
        pytest.raises(headjax.HeadjaxError, match="in use"),  # within one process, too
        hold(tmp_path / "run"),
    ):
        pass


def test_a_lock_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(headjax.HeadjaxError, match=rf"^{tmp_path}/file"), hold(tmp_path / "file"):
        pass


def test_a_bucket_is_not_held(bucket):
    with hold(path_of(bucket) / "run"), hold(path_of(bucket) / "run"):
        pass
