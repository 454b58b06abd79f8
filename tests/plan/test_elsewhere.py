"""Calls in another process: their results, their errors, and crashes that stay there."""

import os
import signal
import time

import jax
import pytest

from headjax.core.errors import ConfigError
from headjax.plan.elsewhere import Crashed, Elsewhere


def process_and_platform(added):
    return os.getpid() + added, jax.devices()[0].platform


def refuse(field):
    raise ConfigError(f"{field}: no")


def crash(words):
    os.write(2, words)
    os.kill(os.getpid(), signal.SIGSEGV)


def test_calls_share_a_process_of_their_own_on_the_cpu(capfd):
    with Elsewhere() as process:
        first, platform = process.call(process_and_platform, 0)
        assert process.call(process_and_platform, added=1) == (first + 1, "cpu")
        assert first != os.getpid()
        assert platform == "cpu"
        with pytest.raises(ConfigError, match=r"^field: no$"):
            process.call(refuse, "field")
        assert process.call(process_and_platform, 0)[0] == first


@pytest.mark.parametrize(
    "words, told",
    [(b"[trace]\n*** SIGSEGV STACK OVERFLOW (see x) received by PID 7; ***\n", "SIGSEGV STACK OVERFLOW"),
     (b"", "out of memory, maybe")],
)  # fmt: skip
def test_a_crash_is_told_in_its_own_words_and_leaves_this_process_alone(words, told, capfd):
    with Elsewhere() as process, pytest.raises(Crashed) as caught:
        process.call(crash, words)
    assert str(caught.value) == told
    assert capfd.readouterr().err == ""


def interrupt(*_):
    raise KeyboardInterrupt


def interrupted(process):
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    with process:
        process.call(time.sleep, 100)


def test_an_interrupt_ends_the_call_too(capfd):
    """A compiler works for minutes, and does not listen meanwhile."""
    before, process = signal.signal(signal.SIGALRM, interrupt), Elsewhere()
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted(process)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert process._process.exitcode == -signal.SIGKILL
