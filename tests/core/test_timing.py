"""Timing in turns: what is called how often, and what counts."""

from __future__ import annotations

from headjax.core import timing


def test_a_turn_is_a_call_that_settles_and_one_that_counts(monkeypatch):
    clock, called = [0.0], []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])

    def call(name, durations):
        def once():
            called.append(name)
            clock[0] += next(durations)

        return once

    first, second = iter([100.0, 50.0, 1.0, 50.0, 3.0]), iter([100.0, 50.0, 10.0, 50.0, 20.0])
    timings = timing.time_in_turns({"a": call("a", first), "b": call("b", second)}, repeats=2, warmup=1, settle=1)
    assert "".join(called) == "ab" + "aabb" * 2
    assert (timings["a"].median, timings["b"].median) == (2.0, 15.0)
    assert (timings["a"].low, timings["b"].high) == (1.5, 17.5)


def test_preparations_come_before_every_call_and_are_not_timed(monkeypatch):
    clock, called = [0.0], []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])

    def advance(name, seconds):
        def once():
            called.append(name)
            clock[0] += seconds

        return once

    calls = {"a": advance("a", 2.0), "b": advance("b", 3.0)}
    seconds = timing.seconds_in_turns(calls, repeats=2, settle=0, before={"a": advance("p", 100.0)})
    assert "".join(called) == "pab" + "pab" * 2
    assert seconds == {"a": [2.0, 2.0], "b": [3.0, 3.0]}
