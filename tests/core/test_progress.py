"""Progress is a bar on a terminal and a line every few seconds anywhere else; control characters reach no terminal."""

import io
import threading
import time

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headjax.core.console import Terminal
from headjax.core.progress import Lines, shown_on
from headjax.core.terminal import Spelled, printable

NEVER = 3600.0


class Clock:
    """A clock that stands still until it is moved."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def written():
    return []


@pytest.fixture
def lines(clock, written):
    """Progress that writes lines by the clock alone."""
    return Lines(written.append, clock=clock, tick=NEVER)


def test_a_terminal_shows_title_count_and_measurements_and_a_file_nothing_of_a_short_command():
    shown, file = io.StringIO(), io.StringIO()
    for console in (Console(file=shown, force_terminal=True, width=120), Console(file=file)):
        with shown_on(console)("training", 7, "step") as bar:
            bar(3, {"loss": 2.5})
    assert all(text in shown.getvalue() for text in ("training", "3/7", "loss 2.5"))
    assert file.getvalue() == ""


def test_a_file_gets_a_line_every_ten_seconds_with_the_time_left(lines, clock, written):
    with lines("training", 50, "step") as bar:
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


@pytest.mark.parametrize(
    ("stage", "reports", "expected"),
    [
        (("reading", 1, "text"), [(12.0, 0)], ["reading, for 12 s"]),  # one unit is not counted
        (
            ("training", 100, "step"),  # neither compilation nor what an earlier run did counts for the time left
            [(0.0, 0), (30.0, 80), (10.0, 90)],
            ["training: step 80 of 100, for 30 s", "training: step 90 of 100, about 10 s left"],
        ),
    ],
)
def test_counts_and_the_time_left(stage, reports, expected, lines, clock, written):
    with lines(*stage) as bar:
        for seconds, done in reports:
            clock.now += seconds
            bar(done, {})
    assert written == expected


def test_stages_share_the_interval(lines, clock, written):
    for stage in ("one", "two", "three", "four"):
        with lines(stage, 0, "batch") as bar:
            clock.now += 4.0
            bar(3, {})
    assert written == ["three: batch 3, for 4 s"]


def test_the_time_left_falls_between_two_reports_and_is_silent_once_it_is_over(clock, written):
    with Lines(written.append, clock=clock, tick=0.001)("training", 100, "step") as bar:
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


CLIPBOARD = "\x1b]52;c;aGk=\x07"
HOSTILE = f"{CLIPBOARD} \x9b31m a\rb \u202eabc \u2066x\u2069 a\u2028b \U000e0041 \ufeffx \x00 \x7f".split(" ")


@pytest.mark.parametrize(
    "text", ["a\n\tb", "né 中文\u3000。", "\U0001f469\u200d\U0001f52c", "\u0645\u06cc\u200c\u062e", "a\u00a0b"]
)
def test_text_stays_as_it_is(text):
    assert printable(text) == text


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def screen_of(content):
    """What a console writes of a text in every place that it has."""
    screen = Screen()
    console = Terminal(screen, force_terminal=True, color_system="standard")
    table = Table(title=content)
    table.add_column(Text(content, style="bold"))
    table.add_row(Text(content, style="bold"))
    console.print(table)
    console.tell(content)
    with shown_on(console)(content, 2, content) as bar:
        bar(1, {content: 1.0})
    return screen.getvalue()


@pytest.mark.parametrize("text", HOSTILE)
def test_a_console_spells_control_characters_and_writes_its_own_codes_alone(text):
    assert printable(text).isprintable()
    assert printable(text) != text
    assert {each for each in screen_of(text) if not each.isprintable()} <= set("\x1b\n\r")
    assert text not in screen_of(text)
    assert "\x1b[" in screen_of("plain")


def test_a_stream_spells_what_is_printed():
    screen = Screen()
    print(f"{CLIPBOARD}\n", end="", file=Spelled(screen), flush=True)
    assert screen.getvalue() == "\\x1b]52;c;aGk=\\x07\n"
    assert Spelled(screen).isatty()
