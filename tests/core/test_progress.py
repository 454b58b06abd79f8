"""Progress is a bar on a terminal and a line every few seconds anywhere else; control characters reach no terminal."""

import io
import itertools
import threading

import pytest
from rich.console import Console

from headjax.core.progress import FIRST, INTERVAL, Lines, Terminal, printable, shown_on


def test_a_terminal_shows_title_count_and_measurements_and_a_file_nothing_of_a_short_command():
    shown, file = io.StringIO(), io.StringIO()
    for console in (Console(file=shown, force_terminal=True, width=120), Console(file=file)):
        with shown_on(console)("training", 7, "step") as bar:
            bar(3, {"loss": 2.5})
    assert all(text in shown.getvalue() for text in ("training", "3/7", "loss 2.5"))
    assert file.getvalue() == ""


def test_a_file_gets_a_line_after_each_interval_about_the_innermost_stage():
    """A line also comes while nothing is reported, as in a compilation; none about a stage that is over."""
    now, written = 100.0, []
    lines = Lines(written.append, clock=lambda: now)

    def after(seconds):
        nonlocal now
        now += seconds
        lines.tell()
        found = list(written)
        written.clear()
        return found

    with lines("training", 50, "step") as bar:
        assert after(FIRST - 1) == []
        assert after(1) == [f"training, after {FIRST:.0f} s"]
        bar(7, {"loss": 2.5})
        assert after(INTERVAL) == ["training: step 7 of 50, loss 2.5, after 15 s"]
        with lines("evaluating", 0, "batch") as inner:
            assert after(INTERVAL - 1) == []
            inner(3, {})
            assert after(2) == ["evaluating: batch 3, after 11 s"]
        assert after(INTERVAL) == ["training: step 7 of 50, loss 2.5, after 36 s"]
    assert after(INTERVAL) == []


def test_a_line_says_what_is_left_by_the_pace_after_the_first_units():
    """Which may hold compilations, or steps that an earlier run did."""
    now, written = 0.0, []
    lines = Lines(written.append, clock=lambda: now)
    with lines("scoring", 400, "batch") as bar:
        for done, seconds in ((1, 20.0), (21, 30.0)):
            now += seconds
            bar(done, {})
        lines.tell()
    assert written == ["scoring: batch 21 of 400, after 50 s, about 9 min 28 s left"]


def test_a_thread_tells_what_is_due_while_the_work_is_busy():
    told = threading.Event()
    lines = Lines(lambda line: told.set(), clock=itertools.count(step=INTERVAL).__next__)
    before = threading.active_count()
    with lines("training", 50, "step"), lines("compiling", 0, ""):
        assert threading.active_count() == before + 1
        assert told.wait(60)
    assert threading.active_count() == before


CLIPBOARD = "\x1b]52;c;aGk=\x07"
HOSTILE = f"{CLIPBOARD} \x9b31m a\rb \u202eabc \u2066x\u2069 a\u2028b \U000e0041 \ufeffx \x00 \x7f".split(" ")


@pytest.mark.parametrize(
    "text", ["a\n\tb", "né 中文\u3000。", "\U0001f469\u200d\U0001f52c", "\u0645\u06cc\u200c\u062e", "a\u00a0b"]
)
def test_text_stays_as_it_is(text):
    assert printable(text) == text


@pytest.mark.parametrize("text", HOSTILE)
def test_control_characters_are_spelled(text):
    assert printable(text).isprintable()
    assert printable(text) != text
    shown = io.StringIO()
    Terminal(shown).tell(text)
    assert all(each.isprintable() or each == "\n" for each in shown.getvalue())
