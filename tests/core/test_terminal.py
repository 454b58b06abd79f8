"""Control characters of models, files and texts reach no terminal."""

from __future__ import annotations

import io

import pytest
from rich.table import Table
from rich.text import Text

from headjax.core.console import Terminal
from headjax.core.progress import shown_on
from headjax.core.terminal import Spelled, printable

CLIPBOARD = "\x1b]52;c;aGk=\x07"
HOSTILE = [
    CLIPBOARD,
    "\x9b31m",
    "a\rb",
    "\u202eabc",
    "\u2066x\u2069",
    "a\u2028b",
    "\U000e0041",
    "\ufeffx",
    "\x00",
    "\x7f",
]


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize("text", HOSTILE)
def test_control_characters_are_spelled(text):
    assert printable(text).isprintable()
    assert printable(text) != text


@pytest.mark.parametrize(
    "text", ["a\n\tb", "né 中文\u3000。", "\U0001f469\u200d\U0001f52c", "\u0645\u06cc\u200c\u062e", "a\u00a0b"]
)
def test_text_stays_as_it_is(text):
    assert printable(text) == text


@pytest.mark.parametrize("text", HOSTILE)
def test_a_console_writes_its_own_codes_alone(text):
    def written(content):
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

    assert {each for each in written(text) if not each.isprintable()} <= set("\x1b\n\r")
    assert text not in written(text)
    assert "\x1b[" in written("plain")


def test_a_stream_spells_what_is_printed():
    screen = Screen()
    print(f"{CLIPBOARD}\n", end="", file=Spelled(screen), flush=True)
    assert screen.getvalue() == "\\x1b]52;c;aGk=\\x07\n"
    assert Spelled(screen).isatty()
