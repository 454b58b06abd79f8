"""Transcripts of the main commands: run in a scratch folder on the decoder that headjax carries, written to a page.

    python docs/transcripts.py        # writes docs/transcripts.md

The page is committed. A test compares it with the list here and with what the quick commands print now.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from headjax.quickstart.decoder import FOLDER

PAGE = Path(__file__).parent / "transcripts.md"


class Session(NamedTuple):
    """Commands that belong together.

    Attributes:
        title: heading on the page.
        text: a sentence before the commands.
        commands: as they are typed; sessions follow each other in one folder.
        is_quick: whether they take no longer than starting Python and print the same each time.
    """

    title: str
    text: str
    commands: tuple[str, ...]
    is_quick: bool = False


TASK = "--task python_code --length 256"
FEW = f"{TASK} --limit 32"

SESSIONS = (
    Session(
        "A model and its heads",
        "`decoder-hf` is a Hugging Face directory: the decoder that headjax carries, a GPT-2 with 4 layers of 8 heads.",
        ("headjax import decoder-hf model --dtype float32", "headjax inspect model"),
        is_quick=True,
    ),
    Session(
        "Its text and its loss",
        "`python_code` is the source code of Python's standard library; whole files are held out.",
        (
            'headjax generate model --prompt "def read_lines(path):" --max-new-tokens 24',
            f"headjax evaluate model {FEW}",
        ),
    ),
    Session(
        "Scores and ablations",
        "Scores are taken on training text, ablations on held-out text. `--json` writes the same for programs.",
        (
            f"headjax score model {TASK} --selected 32 --json scores.json",
            f"headjax ablate model {TASK} --limit 8",
        ),
    ),
    Session(
        "Heads removed",
        "Half of the heads go, by importance on 32 training blocks; both losses are of held-out text.",
        (
            f"headjax prune model pruned --remove 50% {FEW} --selected 32",
            f"headjax compare model pruned {FEW}",
        ),
    ),
    Session(
        "Heads that share",
        "Two query heads read each key and value, weights calibrated on 16 training blocks.",
        (f"headjax convert model grouped --to grouped:kv_heads=4 {FEW} --calibrate 16",),
    ),
    Session(
        "Back to Hugging Face",
        "`--check` reads the directory again and compares the outputs.",
        ("headjax export pruned pruned-hf --check",),
    ),
    Session(
        "Errors",
        "One line each, and exit code 2.",
        (
            "headjax inspect pruned-models",
            "headjax import decoder-hf model",
            "headjax prune model half --remove decoder/9/1",
        ),
        is_quick=True,
    ),
)

HEADER = """# The main commands at work

<!-- Generated: python docs/transcripts.py -->

Typed in an empty folder, one after another, on a CPU. Times and the last digits differ from machine to machine; a few
dozen examples are enough to show the output, not to draw conclusions. [The options of every
command](reference/commands.md), [exit codes](command_line.md#results-and-errors).
"""


def prepare(folder: Path) -> None:
    """Put the files that the commands read into a folder."""
    shutil.copytree(FOLDER, folder / "decoder-hf")


def run(command: str, folder: Path) -> str:
    """Return the output of a command as a terminal shows it, progress left out."""
    words = shlex.split(command)
    called = subprocess.run(
        [sys.executable, "-m", "headjax.cli", *words[1:]], cwd=folder, capture_output=True, text=True, check=False
    )
    errors = [line for line in called.stderr.splitlines() if line.startswith("headjax: ")]
    if called.returncode not in (0, 2) or (called.returncode and not errors):
        raise RuntimeError(f"{command}: exit code {called.returncode}\n{called.stderr}")
    lines = [line.rstrip() for line in (*called.stdout.splitlines(), *errors)]
    return "\n".join(lines).strip("\n")


def shape(output: str) -> list[str]:
    """Return an output without what differs between runs and machines: numbers and the width of columns."""
    lines = (re.sub(r"[\d.,:+-]*\d[\d.,]*", "0", line) for line in output.splitlines())
    return [" ".join(re.sub(r"[─━]+", "", line).split()) for line in lines]


def page(folder: Path) -> str:
    """Return the page; its commands run in the folder."""
    prepare(folder)
    parts = [HEADER]
    for session in SESSIONS:
        parts.append(f"## {session.title}\n\n{session.text}\n")
        for command in session.commands:
            print(command, file=sys.stderr)
            parts.append(f"```console\n$ {command}\n{run(command, folder)}\n```\n")
    return "\n".join(parts)


def transcripts(text: str) -> dict[str, str]:
    """Return the output of each command on a page."""
    return dict(re.findall(r"^```console\n\$ ([^\n]+)\n(.*?)\n```$", text, flags=re.MULTILINE | re.DOTALL))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        PAGE.write_text(page(Path(scratch)), encoding="utf-8")
