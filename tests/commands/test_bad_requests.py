"""Requests that commands refuse: one line, exit code 2, and nothing is written. `golden/errors.txt` has the wording.

After a change of wording, `python -m tests.commands.test_bad_requests` writes the lines anew, to be read.
"""

import contextlib
import io
import json
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


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file."""
    found = {path: path.stat() for path in folder.rglob("*")}
    return {
        str(path): (entry.st_size, entry.st_mtime_ns) for path, entry in found.items() if path.name != "__pycache__"
    }


@pytest.mark.parametrize("line", golden())
def test_bad_requests_are_one_line_and_change_nothing(line, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    before = contents(folder)
    assert main(words_of(line)) == 2
    printed = capsys.readouterr()
    told = printed.err.replace(str(folder.resolve()), "FOLDER")
    assert (printed.out, told) == ("", f"headjax: error: {golden()[line]}\n")
    assert contents(folder) == before


@pytest.mark.parametrize("line", ["inspect model --json result.json", "inspect model --json other.json --overwrite"])
def test_older_results_are_replaced(line, folder, monkeypatch):
    monkeypatch.chdir(folder)
    for _ in range(2):
        assert main(line.split()) == 0
    assert json.loads((folder / line.split()[3]).read_text())["heads"] == 4
    (folder / "void.json").write_text("")
    for place in ("void.json", "/dev/stderr"):
        assert main(["inspect", "model", "--json", place]) == 0


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
