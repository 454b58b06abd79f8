"""A folder of models and texts, and commands in it, whose bars end where they said that they would."""

import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headjax.cli import main
from headjax.core import progress
from tests.commands.language_folder import write_inputs

QUICK = {"test_golden.py"}
"""Files whose tests mark themselves: most end before a program is compiled."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Leave tests of commands on models to `make test-slow`: each compiles a program or two."""
    for item in items:
        here = item.path.parent == Path(__file__).parent and item.path.name not in QUICK
        if here and {"folder", "run"} & set(item.fixturenames):
            item.add_marker(pytest.mark.whole)


ESTIMATED = "compilations or so"
"""Unit of a bar whose number of units is not known before."""


@pytest.fixture(autouse=True)
def bars_that_end(monkeypatch):
    """Bars of commands advance and do not go beyond their number of units."""
    wrong = []

    def shown_on(console):
        @contextlib.contextmanager
        def opened(title, total, unit):
            before = 0

            def update(done, values):
                nonlocal before
                if done < before or (total and done > total and unit != ESTIMATED):
                    wrong.append(f"{title}: {unit} {done} of {total}, after {before}")
                before = done

            yield update

        return opened

    monkeypatch.setattr(progress, "shown_on", shown_on)
    yield
    assert not wrong


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The inputs of all commands, which no test changes."""
    folder = tmp_path_factory.mktemp("commands")
    write_inputs(folder)
    return folder


class Ran(NamedTuple):
    """What a command gave: its JSON, None where it ended without, and what it told people, as one line."""

    data: Any
    told: str


@pytest.fixture
def run(folder, tmp_path, capsys, monkeypatch):
    """Runs a command line in the folder; `OUT` is the test's own folder."""
    monkeypatch.chdir(folder)

    def run(line, code=0):
        assert main([*line.replace("OUT", str(tmp_path)).split(), "--json", "-"]) == code
        printed = capsys.readouterr()
        return Ran(json.loads(printed.out or "null"), " ".join(printed.err.split()))

    return run
