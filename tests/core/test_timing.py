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
