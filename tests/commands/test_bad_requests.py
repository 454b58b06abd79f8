"""Requests that commands refuse: one line, exit code 2, and nothing is written. `golden/errors.txt` has the wording.

After a change of wording, `python -m tests.commands.test_bad_requests` writes the lines anew, to be read.
"""

import contextlib
import io
import shlex
import tempfile
from pathlib import Path

import pytest

from headjax.cli import main
from tests.commands.language_folder import write_inputs

ERRORS = Path(__file__).parent / "golden" / "errors.txt"
QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.py"


def golden() -> dict[str, str]:
    """Lines after `$ headjax`, with the line that each prints."""
    lines = iter(ERRORS.read_text().splitlines())
    return {line.removeprefix("$ headjax "): next(lines) for line in lines}


def words_of(line: str) -> list[str]:
    return [str(QUICKSTART) if word == "QUICKSTART" else word for word in shlex.split(line)]


@pytest.mark.parametrize("line", golden())
def test_bad_requests_are_one_line_and_leave_nothing(line, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(words_of(line)) == 2
    printed = capsys.readouterr()
    told = printed.err.replace(str(folder.resolve()), "FOLDER")
    assert (printed.out, told) == ("", f"headjax: error: {golden()[line]}\n")
    assert not (folder / "bad").exists()


@pytest.mark.parametrize("option", ["--max-new-tokens", "--cache", "--beams"])
def test_what_takes_more_memory_than_there_is_names_its_option(option, folder, capsys):
    assert (
        main(["generate", str(folder / "model"), "--prompt", "a", "--max-new-tokens", "3", option, "1" + 12 * "0"]) == 2
    )
    assert capsys.readouterr().err.startswith(f"headjax: error: {option}: ")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as inputs, contextlib.chdir(inputs):
        write_inputs(Path(inputs))
        told = {}
        for request in golden():
            with contextlib.redirect_stderr(io.StringIO()) as err:
                assert main(words_of(request)) == 2, request
            told[request] = err.getvalue().replace(inputs, "FOLDER").removeprefix("headjax: error: ")
        ERRORS.write_text("".join(f"$ headjax {request}\n{text}" for request, text in told.items()))
