"""Progress is a bar on a terminal and a line every few seconds anywhere else."""

from __future__ import annotations

import io
import threading
import time

import pytest
from rich.console import Console

from headjax.core.progress import Lines, shown_on

NEVER = 3600.0


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_terminal_shows_title_count_and_measurements():
    shown = io.StringIO()
    with shown_on(Console(file=shown, force_terminal=True, width=120))("training", 7, "step") as bar:
        bar(3, {"loss": 2.5})
    assert "training" in shown.getvalue()
    assert "3/7" in shown.getvalue()
    assert "loss 2.5" in shown.getvalue()


def test_a_file_gets_nothing_from_a_short_command():
    shown = io.StringIO()
    with shown_on(Console(file=shown))("training", 7, "step") as bar:
        bar(7, {"loss": 2.5})
    assert shown.getvalue() == ""


def test_a_file_gets_a_line_every_ten_seconds_with_the_time_left(clock):
    written = []
    with Lines(written.append, clock=clock, tick=NEVER)("training", 50, "step") as bar:
        for step in range(50):
            clock.now += 1.0
            bar(step + 1, {"loss": 5.0 - step / 10})
    assert written == [
        "training: step 10 of 50, loss 4.1, about 40 s left",
        "training: step 20 of 50, loss 3.1, about 30 s left",
        "training: step 30 of 50, loss 2.1, about 20 s left",
        "training: step 40 of 50, loss 1.1, about 10 s left",
        "training: step 50 of 50, loss 0.1, for 50 s",
    ]


def test_a_stage_of_one_unit_is_not_counted(clock):
    written = []
    with Lines(written.append, clock=clock, tick=NEVER)("reading", 1, "text") as bar:
        clock.now += 12.0
        bar(0, {})
    assert written == ["reading, for 12 s"]


def test_stages_share_the_interval(clock):
    written = []
    progress = Lines(written.append, clock=clock, tick=NEVER)
    for stage in ("one", "two", "three", "four"):
        with progress(stage, 0, "batch") as bar:
            clock.now += 4.0
            bar(3, {})
    assert written == ["three: batch 3, for 4 s"]


def test_the_time_left_counts_neither_compilation_nor_what_an_earlier_run_did(clock):
    written = []
    with Lines(written.append, clock=clock, tick=NEVER)("training", 100, "step") as bar:
        bar(0, {})
        clock.now += 30.0
        bar(80, {})
        clock.now += 10.0
        bar(90, {})
    assert written == ["training: step 80 of 100, for 30 s", "training: step 90 of 100, about 10 s left"]


def test_the_time_left_falls_between_two_reports_and_is_silent_once_it_is_over(clock):
    written = []
    shown = Lines(written.append, clock=clock, tick=0.001)
    with shown("training", 100, "step") as bar:
        for done in (20, 40):
            clock.now += 20.0
            bar(done, {})
        for _ in range(7):
            count, clock.now = len(written), clock.now + 10.0
            while len(written) == count:
                time.sleep(0.001)
    left = ["about 50 s left", "about 40 s left", "about 30 s left", "about 20 s left", "about 10 s left"]
    assert [line.partition("40 of 100, ")[2] for line in written[2:]] == [*left, "for 2 min", "for 2 min"]


def test_a_line_comes_while_nothing_is_reported(clock):
    written, came = [], threading.Event()

    def write(line):
        written.append(line)
        came.set()

    with Lines(write, clock=clock, tick=0.001)("compiling", 3, "program"):
        clock.now += 200.0
        assert came.wait(60)
    assert written == ["compiling: program 0 of 3, for 3 min"]
