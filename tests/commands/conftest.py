"""A model directory and a text, and commands on them, whose bars end where they said that they would."""

import contextlib
import json
from pathlib import Path

import pytest

from headjax.cli import main
from headjax.core import progress
from tests.commands.language_folder import write_inputs

QUICK = {"test_bad_requests.py"}
"""Files of tests that end before a model is computed."""


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model directory with random weights and a text to try it on."""
    folder = tmp_path_factory.mktemp("commands")
    write_inputs(folder)
    return folder


@pytest.fixture
def run(folder, capsys):
    """Runs a command on the model and returns its JSON."""

    def run(command, *arguments, out=None, task=True):
        words = [command, str(folder / "model"), *([str(folder / out)] if out else []), *arguments]
        words += ["--task", str(folder / "text.txt"), "--limit", "16", "--batch-size", "8"] if task else []
        assert main([*words, "--json", "-"]) == 0
        return json.loads(capsys.readouterr().out)

    return run
