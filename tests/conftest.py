"""What every test runs under: eight simulated CPU devices, strict shapes, seeded and unhurried hypothesis."""

import gc
import hashlib
import logging
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.flags import xla_flags

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")
# Tiny models spend their time in the compiler; this halves it, also in the processes that tests start.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Programs are kept between runs, and between the workers and processes of one run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parents[1] / "build" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

os.environ["XLA_FLAGS"] = xla_flags()

# A shell without job control has what it runs in the background ignore Ctrl-C, and so would the processes that tests
# start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis
import jax
import pytest

from headjax.core.programs import evict_compiled, free_memory
from tests import buckets

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Programs are many objects, and all of them live long: looking for garbage among them took a tenth of the time.
gc.set_threshold(20_000, 20, 20)

# Compilation makes the first example of a property slow, so deadlines would fail by chance. Examples are derandomised
# so that a run depends on the code alone.
hypothesis.settings.register_profile(
    "headjax",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=50,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("headjax")


def pytest_configure(config: pytest.Config) -> None:
    """Give a process one folder for code that `transformers` copies: Python looks for a package where it first was."""
    folder = tempfile.TemporaryDirectory()
    os.environ["HF_MODULES_CACHE"] = folder.name
    config.add_cleanup(folder.cleanup)


DATA = Path(os.environ.get("HEADJAX_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The directory of real data sets, which are not part of the repository; without it the test is skipped."""
    if not DATA.is_dir():
        pytest.skip(f"no data at {DATA}; set HEADJAX_DATA to the directory that holds it")
    return DATA


STATM = Path("/proc/self/statm")
"""File of Linux with the pages of this process."""

LEAST = 3 * 2**30
"""Bytes that a process may have at least before it forgets what it compiled; it may have a quarter of the memory."""


@pytest.fixture(scope="module", autouse=True)
def room_for_programs() -> Iterator[None]:
    """Forgets compiled programs where memory, or the number of its maps, comes to an end."""
    yield
    if evict_compiled() or not STATM.exists():
        return
    page, used = os.sysconf("SC_PAGE_SIZE"), int(STATM.read_text().split()[1])
    if used * page > max(LEAST, os.sysconf("SC_PHYS_PAGES") * page // 4):
        jax.clear_caches()
        gc.collect()
        free_memory()


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Names of the functions that JAX compiles during a test, one for each program."""
    names: list[str] = []

    class Names(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            names.extend(re.findall(r"^Compiling (?:jit\()?(\w+)", record.getMessage()))

    logger, handler = logging.getLogger("jax"), Names()
    logger.addHandler(handler)
    with jax.log_compiles():
        yield names
    logger.removeHandler(handler)


@pytest.fixture(scope="session")
def _buckets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket in memory, for all tests of a process."""
    reason = buckets.missing()
    if reason is not None:
        pytest.skip(reason)
    with buckets.emulator(tmp_path_factory.mktemp("bucket") / "log") as address:
        yield address


@pytest.fixture
def bucket(_buckets: str, request: pytest.FixtureRequest) -> str:
    """The address of an empty folder in a bucket."""
    return f"{_buckets}/{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]}"
