from __future__ import annotations

import signal
import threading

import pytest

from headjax.training.stopping import StopRequest


@pytest.mark.parametrize("number", StopRequest.SIGNALS)
def test_the_first_signal_sets_a_flag_and_the_second_acts_as_usual(number):
    seen = []
    before = signal.signal(number, lambda *given: seen.append(given[0]))
    try:
        with StopRequest() as stop:
            assert not stop.requested
            signal.raise_signal(number)
            assert stop.requested
            assert seen == []
            signal.raise_signal(number)
            assert seen == [number]
        signal.raise_signal(number)
        assert seen == [number] * 2
    finally:
        signal.signal(number, before)


def test_another_thread_leaves_signals_alone():
    handlers = []

    def enter():
        with StopRequest() as stop:
            handlers.append((signal.getsignal(signal.SIGTERM), stop.requested))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert handlers == [(before, False)]
