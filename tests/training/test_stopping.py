from __future__ import annotations

import signal
import threading

import pytest

from headjax.training.loop import SIGNALS, stop_requests


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_sets_a_flag_and_the_second_acts_as_usual(number):
    seen = []
    before = signal.signal(number, lambda *given: seen.append(given[0]))
    try:
        with stop_requests() as stop:
            assert not stop.is_set()
            signal.raise_signal(number)
            assert stop.is_set()
            assert seen == []
            signal.raise_signal(number)
            assert seen == [number]
        signal.raise_signal(number)
        assert seen == [number] * 2
    finally:
        signal.signal(number, before)


def test_time_sets_the_flag_and_its_thread_ends():
    before = threading.active_count()
    with stop_requests(0.0) as stop:
        assert stop.wait(60)
    with stop_requests(1e6) as stop:
        timer = next(each for each in threading.enumerate() if isinstance(each, threading.Timer))
        assert not stop.is_set()
    timer.join(60)
    assert threading.active_count() == before
