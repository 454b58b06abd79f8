"""Locks of folders: one process at a time writes to a folder, also among hosts that share it.

A lock is the file `lock.json` in the folder. It names its holder, who renews it every few seconds, so that a lock whose
holder was killed is known by its silence and taken over. On the host of the holder it is known at once. In a bucket the
service itself lets one of several processes write it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import getpass
import json
import operator
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headjax.core.errors import HeadjaxError
from headjax.storage.files import hidden, process_lives, read_document, write_file
from headjax.storage.paths import is_bucket

LOCK = "lock.json"

BEAT = 10.0
"""Seconds between signs of life of a holder."""

SILENCE = 60.0
"""Seconds without a sign of life after which a holder counts as gone; watched, since clocks of hosts differ."""

FORGOTTEN = 600.0
"""Age of the last sign of life, in seconds, at which nothing is watched any more."""

_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""Errors of file systems that have no second name for a file, such as mounted buckets."""

_HELD: set[str] = set()
"""Tokens of the locks that this process holds."""


class FolderLock:
    """The lock of a folder, held from `acquire` to `release` or inside a `with` block.

    Args:
        folder: made where it does not exist.
        beat: seconds between signs of life; None is `BEAT`.
        silence: seconds without one after which another process's lock is taken over; None is `SILENCE`.
    """

    def __init__(self, folder: Path, *, beat: float | None = None, silence: float | None = None) -> None:
        self.path = folder / LOCK
        self._beat = BEAT if beat is None else beat
        self._silence = SILENCE if silence is None else silence
        self._token = secrets.token_hex(8)
        self._began = time.time()
        self._ended = threading.Event()
        self._lost: dict[str, Any] | None = None
        self._thread = threading.Thread(target=self._renew, name="lock", daemon=True)

    def __enter__(self) -> FolderLock:
        self.acquire()
        return self

    def __exit__(self, *raised: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Take the lock, also from a holder that gives no sign of life for a while.

        Raises:
            HeadjaxError: another process holds it, or it cannot be written.
        """
        while not self._create():
            held = self._read()
            if held is None:
                continue
            if not (self._is_gone(held) or self._is_silent(held)):
                raise HeadjaxError(self._refusal(held))
            if not self._replace(functools.partial(operator.eq, held)):
                continue
            if is_bucket(self.path):
                break
            time.sleep(min(1.0, self._silence))  # of several that take it over, the last to write has it
            taken = self._read()
            if taken is None or taken.get("token") != self._token:
                raise HeadjaxError(self._refusal(taken or held))
            break
        _HELD.add(self._token)
        self._thread.start()

    def release(self) -> None:
        """Give the lock back; nothing happens where it is not held."""
        if self._token not in _HELD:
            return
        self._ended.set()
        self._thread.join()
        _HELD.discard(self._token)
        with contextlib.suppress(HeadjaxError, OSError):  # a lock that stays is known as that of an ended process
            held = self._read()
            if held is not None and held.get("token") == self._token:
                self.path.unlink(missing_ok=True)

    def check(self) -> None:
        """Check that the lock is still held: another process takes it from one that was stopped for a minute.

        Raises:
            HeadjaxError: another process has it.
        """
        if self._lost is not None:
            raise HeadjaxError(f"{self.path.parent}: taken over by {_name(self._lost)} while this process was stopped")

    def _renew(self) -> None:
        while not self._ended.wait(self._beat):
            try:
                held = self._read()
                if held is not None and held.get("token") != self._token:
                    self._lost = held
                    return
                if not self.path.parent.is_dir():
                    return
                self._replace(lambda found: found is None or found.get("token") == self._token)
            except (HeadjaxError, OSError):
                continue  # a full disk stops the run elsewhere, where there is something to say

    def _create(self) -> bool:
        """Make the lock file; return whether there was none."""
        try:
            if is_bucket(self.path):
                return self.path.write_if(self._content(), 0) is not None
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_file():
                return False
            self._link(self._content())
        except OSError as error:
            if isinstance(error, FileExistsError) and self.path.is_file():  # made by another process meanwhile
                return False
            raise HeadjaxError(f"{self.path}: cannot be written ({error.strerror})") from None
        return True

    def _link(self, content: bytes) -> None:
        """Create the file with its content, unless it exists. A process that fails or is killed leaves no file.

        Raises:
            FileExistsError: the file exists.
            OSError: the file cannot be written.
        """
        partial = hidden(self.path, "new")
        try:
            partial.write_bytes(content)
            os.link(partial, self.path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with self.path.open("xb") as file:
                file.write(content)
        finally:
            partial.unlink(missing_ok=True)

    def _replace(self, expected: Callable[[dict[str, Any] | None], bool]) -> bool:
        """Write the lock again if its holder is as expected; return whether it was.

        In a bucket the service refuses the writing where the lock has changed since it was read.

        Raises:
            HeadjaxError: the file cannot be read or written.
        """
        try:
            generation = self.path.generation if is_bucket(self.path) else None
            if not expected(self._read()):
                return False
            if is_bucket(self.path):
                return self.path.write_if(self._content(), generation or 0) is not None
        except OSError as error:
            raise HeadjaxError(f"{self.path}: cannot be written ({error.strerror})") from None
        write_file(self.path, self._content())
        return True

    def _content(self) -> bytes:
        holder = {
            "owner": _user(),
            "host": socket.gethostname(),
            "process": os.getpid(),
            "token": self._token,
            "began": self._began,
            "heartbeat": time.time(),
        }
        return (json.dumps(holder, indent=2) + "\n").encode()

    def _read(self) -> dict[str, Any] | None:
        """Return the holder; None without a lock. A file that is just being written has a heartbeat alone.

        Raises:
            HeadjaxError: the file cannot be read.
        """
        try:
            heartbeat, text = self.path.stat().st_mtime, read_document(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise HeadjaxError(f"{self.path}: cannot be read ({error.strerror})") from None
        except UnicodeDecodeError:
            return {"heartbeat": heartbeat}
        try:
            held = json.loads(text)
        except (ValueError, RecursionError):
            return {"heartbeat": heartbeat}
        return held if isinstance(held, dict) else {"heartbeat": heartbeat}

    def _is_gone(self, held: dict[str, Any]) -> bool:
        """Return whether the holder is known to have ended, without watching it."""
        number = held.get("process")
        if held.get("host") == socket.gethostname() and isinstance(number, int):
            if number == os.getpid():
                return held.get("token") not in _HELD
            if not process_lives(number):
                return True
        return _age(held) > FORGOTTEN

    def _is_silent(self, held: dict[str, Any]) -> bool:
        """Watch a holder; return whether it gives no sign of life."""
        if held.get("host") == socket.gethostname() and _age(held) < self._silence:
            return False
        end = time.monotonic() + self._silence
        while time.monotonic() < end:
            time.sleep(self._beat / 10)
            if self._read() != held:
                return False
        return True

    def _refusal(self, held: dict[str, Any]) -> str:
        return (
            f"{self.path.parent}: in use by {_name(held)}, whose last sign of life is {_age(held):.0f} s old; "
            "end that run or choose another folder"
        )


def _age(held: dict[str, Any]) -> float:
    heartbeat = held.get("heartbeat")
    return time.time() - heartbeat if isinstance(heartbeat, int | float) else FORGOTTEN + 1


def _name(held: dict[str, Any]) -> str:
    return f"process {held.get('process', '?')} of {held.get('owner', '?')} on {held.get('host', '?')}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        return str(os.getuid()) if hasattr(os, "getuid") else "?"
