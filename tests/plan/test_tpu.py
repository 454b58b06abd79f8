"""Slices by name, and calls in another process: their results, their errors, and crashes that stay there."""

import importlib.metadata
import importlib.util
import os
import signal
import time

import jax
import pytest

from headjax.core.errors import ConfigError, HeadjaxError
from headjax.plan.collectives import Collective
from headjax.plan.elsewhere import Crashed, Elsewhere
from headjax.plan.tpu import CHIPS, _check_libtpu, find_slice, roofline

DOCUMENTED = """
v2-8 v2:2x2 8; v3-32 v3:4x4 32; v3-64 v3:4x8 64; v3-128 v3:8x8 128; v3-512 v3:16x16 512; v4-8 v4:2x2x1 4
v4-128 v4:4x4x4 64; v5e-1 v5e:1x1 1; v5e-8 v5e:2x4 8; v5litepod-16 v5e:4x4 16; v5e-256 v5e:16x16 256; v5p-8 v5p:2x2x1 4
v5p-16 v5p:2x2x2 8; v5p-64 v5p:2x4x4 32; v5p-256 v5p:4x4x8 128; v6e-8 v6e:2x4 8; v5e-256x2 v5e:16x16 512
v5p-8x4 v5p:2x2x1 16
"""


def test_shapes_and_devices_are_those_of_the_documentation():
    for name, topology, devices in map(str.split, DOCUMENTED.strip().replace("\n", ";").split(";")):
        assert (find_slice(name).topology, find_slice(name).num_devices) == (topology, int(devices))


def test_a_compiler_string_is_a_slice_too():
    assert find_slice("v3:4x8")[1:] == find_slice("v3-64")[1:]


UNKNOWN = ("", "v9-8", "v3", "v3_32", "tpu", "v5e-8x0", "v5e-8x", "v3-" + "9" * 5000)


@pytest.mark.parametrize("name", [*UNKNOWN, "v5e-2", "v5e-512", "v3-24", "v5p-4", "v5e-2x2", "v5e:2x2x1"])
def test_a_slice_that_does_not_exist_is_refused_with_those_that_do(name):
    with pytest.raises(ConfigError, match=r"^topology: ") as caught:
        find_slice(name)
    if ":" not in name:
        assert "known: v2-8 to v2-512, v3-8" in str(caught.value) or f"{name.split('-')[0]}-8" in str(caught.value)


def test_newer_chips_are_faster_in_every_respect():
    v2, v3, v5e, v6e = (CHIPS[name] for name in ("v2", "v3", "v5e", "v6e"))
    assert v2[5:8] < v3[5:8]
    assert v5e[5:8] < v6e[5:8]


def test_without_the_compiler_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HeadjaxError, match="libtpu"):
        find_slice("v5e-8").devices()


def test_a_compiler_of_another_version_is_refused_before_it_is_asked(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["scipy", 'libtpu==0.0.42.*; extra == "tpu"'])
    for found in ("0.0.42.1", "0.0.42"):
        monkeypatch.setattr(importlib.metadata, "version", lambda name, found=found: found)
        _check_libtpu()
    for found in ("0.0.52", "0.0.420"):
        monkeypatch.setattr(importlib.metadata, "version", lambda name, found=found: found)
        with pytest.raises(HeadjaxError, match=rf"libtpu 0\.0\.42, found {found}: "):
            find_slice("v5e-8").devices()


def test_the_roofline_is_its_highest_resource():
    chip = CHIPS["v3"]
    sent = {"all-reduce": Collective(1, 10**9), "all-gather": Collective(3, 10**9)}
    found = roofline(chip, flops=123e12 / 2, recomputed=123e12 / 4, traffic=450e9, collectives=sent)
    assert found.compute_seconds == pytest.approx(1.5)
    assert found.memory_seconds == pytest.approx(1.0)
    assert found.collective_seconds == pytest.approx(3e9 / 164e9)
    assert found.bound == "compute"
    assert found.mfu == pytest.approx(1 / 1.5)


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
