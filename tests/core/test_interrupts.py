"""Ctrl-C ends a command between imports, not within one."""

from __future__ import annotations

import gc
import importlib
import signal
import sys
import time

import pytest

from headjax.core.interrupts import patient_interrupts


def interrupted(body):
    """Runs the body, which an interrupt ends within two seconds."""
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), patient_interrupts():
        body()
    assert time.monotonic() - start < 2.0


def test_an_import_ends_before_the_interrupt(tmp_path, monkeypatch):
    (tmp_path / "slow_module.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nwhole = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def body():
        importlib.import_module("slow_module")
        time.sleep(5.0)

    interrupted(body)
    assert sys.modules.pop("slow_module").whole
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_waits_at_the_end_comes(tmp_path, monkeypatch):
    (tmp_path / "last_module.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    interrupted(lambda: importlib.import_module("last_module"))


def test_a_collection_of_garbage_drops_no_interrupt():
    def called(phase, info):
        if phase == "start":
            signal.raise_signal(signal.SIGINT)
        else:  # by now it has come again, as after the collection of a large heap
            time.sleep(0.1)

    def body():
        gc.callbacks.append(called)
        try:
            gc.collect(0)  # the youngest objects alone: finalizers of others would drop it
        finally:
            gc.callbacks.remove(called)
        time.sleep(5.0)

    interrupted(body)


def test_elsewhere_an_interrupt_comes_at_once():
    interrupted(lambda: signal.raise_signal(signal.SIGINT))
